//! Fits a profile of the simulator to measurements, and tells how well it fits.

use std::path::Path;

use bmi_report::Report;
use bmi_report::table::Table;
use bmi_sim::{CopyRate, Fit, Measurements, Profile, RegisterTime, Residual};

use crate::case::Over;

/// A file of measurements to fill in. The figures are those of the first paper.
const EXAMPLE: &str = include_str!("example.toml");

/// Where measurements come from.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// The example.
    Example,
    /// A report, or a file of measurements. The transport of a report is its first one, if none is
    /// named.
    File(std::path::PathBuf, Option<&'static str>),
}

impl Input {
    /// Returns the measurements as the text of a file, and a profile that is similar to the
    /// machine.
    ///
    /// # Errors
    /// If the file cannot be read, or a measurement is missing, with the command line that makes
    /// it.
    pub(crate) fn text(&self) -> Result<(String, &'static str), String> {
        let (file, over) = match self {
            Input::Example => return Ok((EXAMPLE.to_owned(), "vapi-2003")),
            Input::File(file, over) => (file, *over),
        };
        if file.extension() != Some("json".as_ref()) {
            let text = read(file)?;
            return Ok((text, "vapi-2003"));
        }
        let report = Report::read(file).map_err(|error| error.to_string())?;
        let text = super::text(&report, over)?;
        let is_tcp = text.contains(&format!("# Measured over {} by", Over::Tcp));
        Ok((text, if is_tcp { "gige-2008" } else { "cx7-400" }))
    }
}

fn read(file: &Path) -> Result<String, String> {
    std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))
}

/// What a fitted profile misses, in words, if it misses something.
pub(crate) type Misfit = Option<String>;

/// Fits a profile. Returns it as the text of a file, a table of what it was fitted to, and what it
/// misses by more than `tolerance` percent.
///
/// # Errors
/// If a file has no measurements, or they cannot be fitted.
pub(crate) fn fit(text: &str, base: &Profile, tolerance: f64) -> Result<(String, String, Misfit), String> {
    let measured = Measurements::parse(text).map_err(|error| error.to_string())?;
    let fitted = bmi_sim::fit(base, &measured).map_err(|error| error.to_string())?;
    if fitted.residuals.is_empty() && fitted.left_out.is_empty() {
        return Err("nothing was measured; --example shows what can be".to_owned());
    }
    let mut table = Table::new(1, ["measurement", "measured", "fitted", "error"]);
    for residual in &fitted.residuals {
        let figure = |value: f64| format!("{value:.2}");
        let error = format!("{:+.1} %", 100.0 * residual.error());
        table.row([residual.what.clone(), figure(residual.measured), figure(residual.fitted), error]);
    }
    Ok((fitted.profile.to_toml(), table.render(), misfit(&fitted, tolerance)))
}

/// Returns what the simulator measures of a profile, as a file of measurements.
///
/// # Errors
/// If the simulator cannot run the profile.
pub(crate) fn show(profile: &Profile) -> Result<String, String> {
    let register = [(1, 400 << 10), (100, 4 << 10)].map(|(regions, bytes)| RegisterTime { regions, bytes, us: 1.0 });
    let copy = [4 << 10, 20 << 20].map(|bytes| CopyRate { bytes, mb_per_s: 1.0 });
    let like = Measurements { register: register.to_vec(), copy: copy.to_vec(), ..Measurements::default() };
    Measurements::of(profile, &like).map(|of| of.to_toml()).map_err(|error| error.to_string())
}

/// Describes what is wrong with a fit and what to do.
fn misfit(Fit { residuals, left_out, .. }: &Fit, tolerance: f64) -> Misfit {
    let off = |residual: &&Residual| 100.0 * residual.error().abs() > tolerance;
    let lines = residuals.iter().filter(off).map(|residual| {
        let Residual { what, measured, fitted } = residual;
        format!("  {what}: measured {measured:.2}, fitted {fitted:.2} ({:+.1} %)\n", 100.0 * residual.error())
    });
    let unknown = left_out.iter().map(|what| format!("  {what}: a machine like the base does not have that\n"));
    let lines: String = lines.chain(unknown).collect();
    (!lines.is_empty()).then(|| {
        format!(
            "the profile misses what was measured by more than {tolerance} %:\n{lines}\
             Either no machine of the simulator can have all these figures at once (a read that is faster than two \
             writes): measure again, or leave one out. Or the base is of the wrong kind: --base gige-2008 or \
             ibnice-2003 for TCP, vapi-2003 or cx7-400 for an adapter that moves bytes itself. --tolerance \
             accepts larger errors."
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example was not recovered. The bandwidths of sends and reads were a fifth of the
    /// measured ones, because the stream counted completions of the ping-pong before it, and the
    /// exit status was 0.
    #[test]
    fn the_example_is_fitted() {
        let (profile, table, misfit) = fit(EXAMPLE, &Profile::vapi_2003(), 1.0).expect("fitted");
        // Below a heading and a rule.
        assert_eq!((misfit, table.lines().skip(2).count()), (None, 12), "nothing is left out");
        let fitted = bmi_sim::fit(&Profile::vapi_2003(), &Measurements::parse(EXAMPLE).unwrap()).expect("fitted");
        assert_eq!(fitted.profile.to_toml(), profile);
        // Compare the prices with the measured bandwidths, and not only with the simulator.
        let prices = [(fitted.profile.adapter_ps_per_byte, 827.0), (fitted.profile.read_ps_per_byte, 816.0)];
        for (price, mb_per_s) in prices {
            let got = 1e12 / (price as f64 * 1_048_576.0);
            assert!((got / mb_per_s - 1.0_f64).abs() < 0.02, "{price} ps a byte is {got} MB/s");
        }
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let odd = "write_one_way_us = 6.0\nread_round_trip_us = 7.0\n";
        let misfit = |base: &str| fit(odd, &Profile::named(base).unwrap(), 5.0).unwrap().2.unwrap();
        let text = misfit("vapi-2003");
        assert!(text.contains("read_round_trip_us") && !text.contains("write_one_way_us"), "{text}");
        assert!(text.contains("--base"), "{text}");
        let text = misfit("gige-2008");
        assert!(text.contains("write_one_way_us: a machine like the base does not have that"), "{text}");
        assert!(fit("# nothing\n", &Profile::vapi_2003(), 5.0).is_err());
    }
}
