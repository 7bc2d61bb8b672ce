//! Fits a profile to a few measurements: it takes [`Measurements`] and returns a [`Profile`] and
//! the remaining differences.
//!
//! **Why.** The owner of a machine can measure a latency and a bandwidth, but not the time that its
//! adapter spends on a descriptor. The fit starts from the prices of a base profile. It changes
//! them until the simulator gives the same measurements.
//!
//! **How.** Each measurement changes a group of prices. The prices of a group keep their
//! proportions to each other, which are the base's:
//!
//! | measurement | changes |
//! |---|---|
//! | RDMA write, one way | `link_latency_ns`, `adapter_message_ns`, `cpu_post_ns` |
//! | send, one way | the send's part beyond a write: `receive_ns`, `receive_scatter_ns`, |
//! | | `cpu_completion_ns`, `cpu_post_receive_ns` |
//! | send, over TCP or without a write's time | `link_latency_ns`, `cpu_post_ns`, `cpu_receive_ns`; if these are 0, |
//! | | `interrupt_ns`, `context_switch_ns`, `system_call_ns` |
//! | RDMA read, round trip | `read_response_ns` |
//! | bandwidths | `adapter_ps_per_byte`, `read_ps_per_byte`; `bus_ps_per_byte` where it is the limit; |
//! | | over TCP, below the wire's bandwidth, the processor's prices |
//! | registration | `register_region_ns`, `register_page_ns`, by least squares |
//! | copies | `copy_cached_ps_per_byte`, `copy_ps_per_byte`, and with it `memory_ps_per_byte` |
//! | disk | `disk.read_ps_per_byte`, `disk.write_ps_per_byte` |
//!
//! Some measurements cannot come from any prices, such as a read that is faster than two writes.
//! They remain as a residual, for the reader to judge. The base's kind of machine may lack an
//! operation that was measured, such as a read over TCP. [`Fit::left_out`] names these
//! measurements.
//!
//! Tested by `tests/it/profiles/fit.rs`: it fits measurements of a known profile back, and compares
//! bandwidths with the prices themselves. `bmi-perf calibrate` tests that its
//! own example is recovered.

mod micro;

use serde::{Deserialize, Serialize};

use bmi_core::Error;

use self::micro::Micro;
use crate::prices::{Profile, ProfileError};

const MB: f64 = 1_048_576.0;
/// Rounds of the fit. Each round leaves a few percent of the error of the round before.
const ROUNDS: usize = 16;

/// The measurements of a machine; each one is optional. MB are 2^20 bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Measurements {
    /// One-way time of a send of 4 bytes: half of a round trip. Over TCP the reader blocks;
    /// otherwise it polls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_one_way_us: Option<f64>,
    /// One-way time of an RDMA write of 4 bytes into memory that the peer polls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_one_way_us: Option<f64>,
    /// Time of an RDMA read of 4 bytes, from the post until its completion has been taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_round_trip_us: Option<f64>,
    /// Bandwidth of a stream of long sends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_mb_per_s: Option<f64>,
    /// Bandwidth of a stream of long RDMA writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_mb_per_s: Option<f64>,
    /// Bandwidth of a stream of long RDMA reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_mb_per_s: Option<f64>,
    /// Bandwidth of reading a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_read_mb_per_s: Option<f64>,
    /// Bandwidth of writing a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_write_mb_per_s: Option<f64>,
    /// Times of registering and deregistering memory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub register: Vec<RegisterTime>,
    /// Rates of copying memory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub copy: Vec<CopyRate>,
}

/// The time that registering and deregistering some regions took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisterTime {
    /// Number of regions.
    pub regions: u32,
    /// Bytes of each region.
    pub bytes: u64,
    /// Time for all of them, in µs.
    pub us: f64,
}

/// The rate at which memory was copied.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyRate {
    /// Bytes of one copy.
    pub bytes: u64,
    /// The rate of the copy.
    pub mb_per_s: f64,
}

/// One measurement, and its value with the fitted profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Residual {
    /// The name of the measurement.
    pub what: String,
    /// The measured value.
    pub measured: f64,
    /// The simulator's value with the fitted profile.
    pub fitted: f64,
}

impl Residual {
    /// Returns the error of the fit, relative to the measured value.
    pub fn error(&self) -> f64 {
        self.fitted / self.measured - 1.0
    }
}

/// A profile, and how well it fits.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// The fitted profile.
    pub profile: Profile,
    /// The residuals, in the order of the measurements.
    pub residuals: Vec<Residual>,
    /// Measurements of operations that the base's kind of machine lacks: one-sided operations over
    /// TCP.
    pub left_out: Vec<String>,
}

impl Measurements {
    /// Reads measurements from TOML.
    ///
    /// # Errors
    /// [`ProfileError`], naming the key at fault: unknown, of the wrong type, not above zero.
    pub fn parse(text: &str) -> Result<Measurements, ProfileError> {
        let measured: Measurements =
            toml::from_str(text).map_err(|error| ProfileError::Malformed(error.to_string()))?;
        for (what, value) in measured.values() {
            if !(value.is_finite() && value > 0.0) {
                return Err(ProfileError::Nonsense { key: what, why: format!("has to be above zero ({value})") });
            }
        }
        let limits = [
            (
                "register",
                measured.register.iter().all(|point| point.regions > 0 && (1..=1 << 30).contains(&point.bytes)),
            ),
            ("copy", measured.copy.iter().all(|point| (1..=1 << 40).contains(&point.bytes))),
        ];
        match limits.into_iter().find(|(_, fine)| !fine) {
            Some((key, _)) => Err(ProfileError::Nonsense {
                key: key.to_owned(),
                why: "needs sizes from 1 byte to 1 GiB, and at least one region".to_owned(),
            }),
            None => Ok(measured),
        }
    }

    /// Returns the measurements as TOML, which [`Measurements::parse`] reads back.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("numbers and tables of numbers")
    }

    /// Measures a profile in the simulator: everything that makes sense for it, with registration
    /// and copies at the sizes of `like`.
    ///
    /// # Errors
    /// The error of an adapter of the profile that refuses a request.
    pub fn of(profile: &Profile, like: &Measurements) -> Result<Measurements, Error> {
        // Each measurement gets a new machine, so that none depends on an earlier one.
        let measure = |of: fn(Micro) -> f64| Micro::new(profile).map(of);
        let one_sided = |of: fn(Micro) -> f64| match profile.software {
            true => Ok(None),
            false => measure(of).map(Some),
        };
        let rate = |ps: u64| (ps > 0).then(|| 1e12 / (ps as f64 * MB));
        let register = like.register.iter().map(|point| {
            let us = Micro::new(profile)?.register_us(point.regions as usize, point.bytes as usize)?;
            Ok(RegisterTime { us, ..*point })
        });
        let copy = like.copy.iter().map(|point| {
            let mb_per_s = Micro::new(profile)?.copy_mb_per_s(point.bytes);
            Ok(CopyRate { mb_per_s, ..*point })
        });
        Ok(Measurements {
            write_one_way_us: one_sided(Micro::write_one_way_us)?,
            read_round_trip_us: one_sided(Micro::read_round_trip_us)?,
            write_mb_per_s: one_sided(Micro::write_mb_per_s)?,
            read_mb_per_s: one_sided(Micro::read_mb_per_s)?,
            send_one_way_us: Some(measure(Micro::send_one_way_us)?),
            send_mb_per_s: Some(measure(Micro::send_mb_per_s)?),
            disk_read_mb_per_s: rate(profile.disk.read_ps_per_byte),
            disk_write_mb_per_s: rate(profile.disk.write_ps_per_byte),
            register: register.collect::<Result<_, Error>>()?,
            copy: copy.collect::<Result<_, Error>>()?,
        })
    }

    /// Returns all measured values, by name.
    fn values(&self) -> Vec<(String, f64)> {
        let single = [
            ("send_one_way_us", self.send_one_way_us),
            ("write_one_way_us", self.write_one_way_us),
            ("read_round_trip_us", self.read_round_trip_us),
            ("send_mb_per_s", self.send_mb_per_s),
            ("write_mb_per_s", self.write_mb_per_s),
            ("read_mb_per_s", self.read_mb_per_s),
            ("disk_read_mb_per_s", self.disk_read_mb_per_s),
            ("disk_write_mb_per_s", self.disk_write_mb_per_s),
        ];
        let single = single.into_iter().filter_map(|(what, value)| Some((what.to_owned(), value?)));
        let register = self.register.iter().map(|of| (format!("register {} x {} B, us", of.regions, of.bytes), of.us));
        let copy = self.copy.iter().map(|of| (format!("copy {} B, mb_per_s", of.bytes), of.mb_per_s));
        single.chain(register).chain(copy).collect()
    }
}

/// Adds `delta` ns to prices, in their proportions. If all prices are 0, the first one takes it
/// all.
fn spread<const N: usize>(delta: f64, prices: [&mut u64; N]) {
    let total: f64 = prices.iter().map(|price| **price as f64).sum();
    for (at, price) in prices.into_iter().enumerate() {
        let part = match total > 0.0 {
            true => *price as f64 / total,
            false => f64::from(u8::from(at == 0)),
        };
        *price = (*price as f64 + delta * part).round().max(0.0) as u64;
    }
}

fn scale(factor: f64, price: &mut u64) {
    *price = (*price as f64 * factor).round().max(1.0) as u64;
}

/// Returns both values if both were measured.
fn both(measured: Option<f64>, got: Option<f64>) -> Option<(f64, f64)> {
    Some((measured?, got?))
}

/// Fits `base` to the measurements. Prices without a measurement keep their value.
///
/// # Errors
/// The error of an adapter of such a profile that refuses a request.
pub fn fit(base: &Profile, measured: &Measurements) -> Result<Fit, Error> {
    let mut profile = base.clone();
    fit_directly(&mut profile, measured);
    for _ in 0..ROUNDS {
        let got = Measurements::of(&profile, &Measurements::default())?;
        turn_latencies(&mut profile, measured, &got);
        turn_bandwidths(&mut profile, measured, &got);
    }
    let got: std::collections::BTreeMap<_, _> = Measurements::of(&profile, measured)?.values().into_iter().collect();
    let (mut residuals, mut left_out) = (Vec::new(), Vec::new());
    for (what, measured) in measured.values() {
        match got.get(&what) {
            Some(&fitted) => residuals.push(Residual { what, measured, fitted }),
            None => left_out.push(what),
        }
    }
    Ok(Fit { profile, residuals, left_out })
}

fn turn_latencies(profile: &mut Profile, measured: &Measurements, got: &Measurements) {
    let off = |pair: Option<(f64, f64)>| pair.map(|(measured, got)| (measured - got) * 1e3);
    let write = off(both(measured.write_one_way_us, got.write_one_way_us));
    let send = off(both(measured.send_one_way_us, got.send_one_way_us));
    let read = off(both(measured.read_round_trip_us, got.read_round_trip_us));
    let p = &mut *profile;
    // The gap counts twice, once at each end, so the proportions are not kept exactly. The next
    // round corrects that.
    if let Some(delta) = write {
        spread(delta, [&mut p.link_latency_ns, &mut p.adapter_message_ns, &mut p.cpu_post_ns]);
    }
    match (send, write) {
        (Some(send), Some(write)) => {
            let prices =
                [&mut p.receive_ns, &mut p.receive_scatter_ns, &mut p.cpu_completion_ns, &mut p.cpu_post_receive_ns];
            spread(send - write, prices);
        }
        (Some(send), None) => {
            let left = send + (p.link_latency_ns + p.cpu_post_ns + p.cpu_receive_ns) as f64;
            spread(send, [&mut p.link_latency_ns, &mut p.cpu_post_ns, &mut p.cpu_receive_ns]);
            // A message that stays on its host can take less time than some bases charge for an
            // interrupt and a switch.
            if left < 0.0 {
                spread(left, [&mut p.interrupt_ns, &mut p.context_switch_ns, &mut p.system_call_ns]);
            }
        }
        (None, _) => {}
    }
    if let Some(delta) = read {
        // There and back: the write's part has been changed already.
        spread(delta - 2.0 * write.unwrap_or(0.0), [&mut p.read_response_ns]);
    }
}

fn turn_bandwidths(profile: &mut Profile, measured: &Measurements, got: &Measurements) {
    let write = both(measured.write_mb_per_s, got.write_mb_per_s);
    let send = both(measured.send_mb_per_s, got.send_mb_per_s);
    let p = &mut *profile;
    if let Some((measured, got)) = write.or(send) {
        let host = |bytes: u64, packet: u64| bytes as f64 + packet as f64 * 1e3 / p.packet_bytes as f64;
        let sending = host(p.cpu_send_ps_per_byte, p.cpu_send_packet_ns);
        let receiving = host(p.cpu_receive_ps_per_byte, p.cpu_receive_packet_ns);
        if p.software && sending.max(receiving) > p.adapter_ps_per_byte as f64 {
            for price in [
                &mut p.cpu_send_ps_per_byte,
                &mut p.cpu_send_packet_ns,
                &mut p.cpu_receive_ps_per_byte,
                &mut p.cpu_receive_packet_ns,
            ] {
                scale(got / measured, price);
            }
        } else {
            scale(got / measured, &mut p.adapter_ps_per_byte);
        }
    }
    if let Some((measured, got)) = both(measured.read_mb_per_s, got.read_mb_per_s) {
        scale(got / measured, &mut p.read_ps_per_byte);
    }
    p.bus_ps_per_byte = p.bus_ps_per_byte.min(p.adapter_ps_per_byte).min(p.read_ps_per_byte.max(1));
}

/// Fits the prices that need no search.
fn fit_directly(profile: &mut Profile, measured: &Measurements) {
    let ps = |mb_per_s: f64| (1e12 / (mb_per_s * MB)).round().max(1.0) as u64;
    if let Some(rate) = measured.disk_read_mb_per_s {
        profile.disk.read_ps_per_byte = ps(rate);
    }
    if let Some(rate) = measured.disk_write_mb_per_s {
        profile.disk.write_ps_per_byte = ps(rate);
    }
    let longest = measured.copy.iter().filter(|of| of.bytes > profile.copy_cached_bytes).max_by_key(|of| of.bytes);
    if let Some(short) =
        measured.copy.iter().filter(|of| of.bytes <= profile.copy_cached_bytes).max_by_key(|of| of.bytes)
    {
        let ns = short.bytes as f64 / MB / short.mb_per_s * 1e9 - profile.copy_piece_ns as f64;
        profile.copy_cached_ps_per_byte = (ns.max(0.0) * 1e3 / short.bytes as f64).round() as u64;
    }
    if let Some(long) = longest {
        let ns = long.bytes as f64 / MB / long.mb_per_s * 1e9 - profile.copy_piece_ns as f64;
        let cached = profile.copy_cached_bytes as f64;
        let rest = ns * 1e3 - cached * profile.copy_cached_ps_per_byte as f64;
        let before = profile.copy_ps_per_byte.max(1) as f64;
        profile.copy_ps_per_byte = (rest / (long.bytes as f64 - cached)).round().max(0.0) as u64;
        // A long copy also shows how fast the memory bus is.
        let bus = profile.memory_ps_per_byte as f64 * profile.copy_ps_per_byte as f64 / before;
        profile.memory_ps_per_byte = bus.round() as u64;
    }
    fit_registration(profile, &measured.register);
}

/// `us = regions × region + pages × page` for all points, by least squares of the relative error.
fn fit_registration(profile: &mut Profile, points: &[RegisterTime]) {
    if points.is_empty() {
        return;
    }
    let rows = points.iter().map(|of| {
        let regions = f64::from(of.regions);
        (regions / of.us, regions * of.bytes.div_ceil(4096) as f64 / of.us)
    });
    let (mut aa, mut ab, mut bb, mut a1, mut b1) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (a, b) in rows {
        aa += a * a;
        ab += a * b;
        bb += b * b;
        a1 += a;
        b1 += b;
    }
    let determinant = aa * bb - ab * ab;
    let (region, page) = if determinant > 1e-9 * aa * bb {
        ((a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant)
    } else {
        // One size does not separate the two parts, so the base's proportions are kept.
        let (region, page) = (profile.register_region_ns as f64, profile.register_page_ns as f64);
        let sum = region * aa + page * ab;
        if sum > 0.0 { (region * a1 / sum, page * a1 / sum) } else { (a1 / aa, 0.0) }
    };
    profile.register_region_ns = (region * 1e3).round().max(0.0) as u64;
    profile.register_page_ns = (page * 1e3).round().max(0.0) as u64;
    // The measurement is the sum of both.
    profile.deregister_batch_ns = 0;
    profile.deregister_region_ns = 0;
    profile.deregister_page_ns = 0;
}
