//! Profiles of machines: what the papers and micro-benchmarks measured, and what calibration and
//! fitting find.

mod calibration;
mod figures;
mod fit;
mod table2;
