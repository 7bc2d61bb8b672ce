//! Fits a profile of the simulator to a few measurements of a machine, and prints how well it fits.
//! See `bmi_sim::fit`.

use std::path::PathBuf;
use std::process::ExitCode;

use bmi_report::table::Table;
use bmi_sim::{CopyRate, Fit, Measurements, Profile, RegisterTime, Residual, fit};
use clap::Parser;
use serde::Deserialize;

const EXAMPLE: &str = "\
# Measurements of a machine, as many as there are. Times in us, rates in MB/s of 2^20 bytes.
send_one_way_us = 9.2        # 4 bytes; half of a round trip (ib_send_lat; over TCP a blocking ping-pong)
write_one_way_us = 6.0       # ib_write_lat
read_round_trip_us = 12.4    # ib_read_lat
send_mb_per_s = 825.0        # a stream of long messages (ib_send_bw, ttcp)
write_mb_per_s = 827.0       # ib_write_bw
read_mb_per_s = 816.0        # ib_read_bw
register = [                 # registering and deregistering
  { regions = 1, bytes = 409600, us = 530.0 },
  { regions = 100, bytes = 4096, us = 12400.0 },
]
copy = [                     # memcpy, short and long
  { bytes = 4096, mb_per_s = 1057.0 },
  { bytes = 20971520, mb_per_s = 596.0 },
]
disk_read_mb_per_s = 20.0
disk_write_mb_per_s = 25.0
";

/// Fits a profile of the simulator to a few measurements of a machine.
///
/// Changes the prices of a base profile until the simulator measures what the machine did.
/// Quantities that were not measured stay as in the base, so choose a base that is similar to the
/// machine: `vapi-2003` or `cx7-400` for an adapter that moves bytes itself, `ibnice-2003` or
/// `gige-2008` for TCP. The profile is written to standard output as TOML, for `Profile::load`. A
/// table of the measurements and of the values that the fitted profile gives is written to standard
/// error. If the profile misses a measurement by more than --tolerance, it is still written, but
/// the exit status is 1: the measurements contradict each other, or the base is of the wrong kind.
///
/// Every program with an option --base, --show, --profile or --over that takes a profile also takes
/// the file: `ab workload --over profile.toml …`.
#[derive(Parser)]
#[command(after_help = "Examples:\n  \
                        calibrate --example > mine.toml          what can be measured, with the first paper's figures\n  \
                        calibrate mine.toml > profile.toml       fit it\n  \
                        calibrate --base gige-2008 tcp.toml      from another base: a name, or a file\n  \
                        calibrate --base gige-2008+nvme tcp.toml the same with another disk\n  \
                        cargo xtask bench -- --json > micro.json; calibrate --base gige-2008 --micro micro.json\n  \
                        calibrate --show cx7-400                 what the simulator measures of a profile\n\n\
                        Exit status: 0 the profile fits, 1 it misses a measurement by more than --tolerance or cannot be made, 2 the command line is wrong.")]
struct Cli {
    /// The file of measurements; `--example` prints one.
    #[arg(value_name = "FILE", required_unless_present_any = ["example", "show", "micro"])]
    measurements: Option<PathBuf>,
    /// The profile to start from: a name or a file. +NAME or +FILE gives it another disk.
    #[arg(long, value_name = "NAME|FILE", default_value = "vapi-2003", value_parser = Profile::from_name_or_file)]
    base: Profile,
    /// The error of the fitted profile above which the exit status is 1.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = percent)]
    tolerance: f64,
    /// Read latency and bandwidth of plain sockets from the output of `micro --json`.
    #[arg(long, value_name = "FILE")]
    micro: Option<PathBuf>,
    /// Print a file of measurements to fill in.
    #[arg(long)]
    example: bool,
    /// Print what the simulator measures with this profile.
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "measurements", value_parser = Profile::from_name_or_file)]
    show: Option<Profile>,
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The parts of a line of `micro --json` that are needed here.
#[derive(Deserialize)]
struct Line {
    what: String,
    size: usize,
    /// Seconds, or bytes per second.
    plain: f64,
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "a number of percent, as in 5 or 2.5".to_owned())
}

/// Returns the latency of the shortest message and the bandwidth of the longest.
fn of_micro(text: &str) -> Outcome<Measurements> {
    let lines: Vec<Line> = serde_json::from_str(text)?;
    let of = |what: &'static str| lines.iter().filter(move |line| line.what.eq_ignore_ascii_case(what));
    let latency = of("latency").min_by_key(|line| line.size).map(|line| line.plain * 1e6);
    let bandwidth = of("send").max_by_key(|line| line.size).map(|line| line.plain / 1_048_576.0);
    Ok(Measurements { send_one_way_us: latency, send_mb_per_s: bandwidth, ..Measurements::default() })
}

/// Describes what is wrong with a fit and what to do. Returns `None` if everything is within the
/// tolerance.
fn misfit(Fit { residuals, left_out, .. }: &Fit, tolerance: f64) -> Option<String> {
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

/// Returns true if the profile fits.
fn run(cli: &Cli) -> Outcome<bool> {
    if cli.example {
        print!("{EXAMPLE}");
        return Ok(true);
    }
    if let Some(profile) = &cli.show {
        let register =
            [(1, 400 << 10), (100, 4 << 10)].map(|(regions, bytes)| RegisterTime { regions, bytes, us: 1.0 });
        let copy = [4 << 10, 20 << 20].map(|bytes| CopyRate { bytes, mb_per_s: 1.0 });
        let like = Measurements { register: register.to_vec(), copy: copy.to_vec(), ..Measurements::default() };
        print!("{}", Measurements::of(profile, &like)?.to_toml());
        return Ok(true);
    }
    let mut measured = match &cli.measurements {
        Some(path) => Measurements::parse(
            &std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?,
        )?,
        None => Measurements::default(),
    };
    if let Some(path) = &cli.micro {
        let micro = of_micro(&std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?)?;
        measured.send_one_way_us = measured.send_one_way_us.or(micro.send_one_way_us);
        measured.send_mb_per_s = measured.send_mb_per_s.or(micro.send_mb_per_s);
    }
    let fitted = fit(&cli.base, &measured)?;
    let mut table = Table::new(1, ["measurement", "measured", "fitted", "error"]);
    for residual in &fitted.residuals {
        let figure = |value: f64| format!("{value:.2}");
        let error = format!("{:+.1} %", 100.0 * residual.error());
        table.row([residual.what.clone(), figure(residual.measured), figure(residual.fitted), error]);
    }
    if fitted.residuals.is_empty() && fitted.left_out.is_empty() {
        return Err("nothing was measured; calibrate --example shows what can be".into());
    }
    eprint!("{}", table.render());
    print!("{}", fitted.profile.to_toml());
    let misfit = misfit(&fitted, cli.tolerance);
    if let Some(text) = &misfit {
        eprintln!("error: {text}");
    }
    Ok(misfit.is_none())
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_parsed() {
        assert!(cli_check::every_option::<Cli>(&[("show", "vapi-2003")]) >= 5);
    }

    /// The example was not recovered. The bandwidths of sends and reads were a fifth of the
    /// measured ones, because the stream counted completions of the ping-pong before it, and the
    /// exit status was 0.
    #[test]
    fn the_example_is_fitted() {
        let measured = Measurements::parse(EXAMPLE).expect("the example");
        let fitted = fit(&Profile::vapi_2003(), &measured).expect("fitted");
        assert_eq!(fitted.residuals.len(), 12, "nothing is left out");
        assert_eq!(misfit(&fitted, 1.0), None);
        let profile = fitted.profile;
        // Compare the prices with the measured bandwidths, and not only with the simulator.
        for (what, price, mb_per_s) in
            [("write", profile.adapter_ps_per_byte, 827.0), ("read", profile.read_ps_per_byte, 816.0)]
        {
            let got = 1e12 / (price as f64 * 1_048_576.0);
            assert!((got / mb_per_s - 1.0_f64).abs() < 0.02, "{what}: {price} ps a byte is {got} MB/s");
        }
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let measured =
            Measurements { write_one_way_us: Some(6.0), read_round_trip_us: Some(7.0), ..Measurements::default() };
        let fitted = fit(&Profile::vapi_2003(), &measured).expect("fitted");
        let text = misfit(&fitted, 5.0).expect("a read is two ways");
        assert!(text.contains("read_round_trip_us") && !text.contains("write_one_way_us"), "{text}");
        assert!(text.contains("--base"), "{text}");
        let fitted = fit(&Profile::named("gige-2008").expect("a name"), &measured).expect("fitted");
        let text = misfit(&fitted, 5.0).expect("over TCP there is no read");
        assert!(text.contains("write_one_way_us: a machine like the base does not have that"), "{text}");
    }

    #[test]
    fn the_example_and_the_micro_benchmark_are_understood() {
        let example = Measurements::parse(EXAMPLE).expect("the example");
        assert_eq!((example.register.len(), example.copy.len(), example.read_mb_per_s), (2, 2, Some(816.0)));
        let line = |what: &str, size: u32, plain: f64| {
            format!("{{\"mode\":\"Polling\",\"what\":\"{what}\",\"size\":{size},\"plain\":{plain},\"ours\":1.0}}")
        };
        let text =
            format!("[{},{},{}]", line("Latency", 4096, 2e-5), line("Latency", 4, 1e-5), line("Send", 1 << 20, 1e9));
        let measured = of_micro(&text).expect("as micro prints it");
        assert_eq!(measured.send_one_way_us.map(f64::round), Some(10.0));
        assert_eq!(measured.send_mb_per_s.map(f64::round), Some(954.0));
    }
}
