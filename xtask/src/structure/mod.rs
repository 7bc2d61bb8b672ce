//! `cargo xtask structure`: measures how the files of a directory call each other.
//!
//! **Why.** Files that all call each other can only be understood and changed together. A limit on
//! cycles keeps the layers of the protocol apart, and the measures show whether a change of the
//! structure was one.
//!
//! **How.** Every file is parsed, without its tests. Each call is resolved to the file that defines
//! the function. The files and the calls between them are a graph. A *cycle* is a strongly
//! connected component of it: a set of files of which each reaches each other one by calls. It may
//! consist of several rounds.
//!
//! **Limits.** Few types are inferred, so a call of a method can be ambiguous; `calls` has the
//! rules. A function pointer is seen where the function is named, and not where it is called.
//! Calls in the expansion of a macro are not seen, nor a cycle that leads through files outside of
//! the directory.
//!
//! | module | what |
//! |---|---|
//! | `source` | the files of the directory, and their lines |
//! | `test_code` | removes tests |
//! | `names` | what a path names |
//! | `types` | what is known of a type |
//! | `definitions` | functions, methods and fields |
//! | `inference` | what is known of variables and expressions |
//! | `calls` | the calls, and the functions that they reach |
//! | `graph` | the graph of files, its cycles |
//! | `report` | the result for people and for programs |
//!
//! **Tests** of each rule are in its module, on small texts.

mod calls;
mod definitions;
mod graph;
mod inference;
mod names;
mod report;
mod source;
mod test_code;
mod types;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use self::definitions::Definitions;
use self::names::Names;
use self::report::Report;
use crate::command::Failure;
use crate::totals::Totals;

/// Measures how the files of a directory call each other.
#[derive(Args)]
#[command(after_help = "\
Measures, all outside of tests (#[test], #[cfg(test)]):
  lines          lines, and those that are neither empty nor a comment (code)
  functions      functions, methods, associated functions
  of TYPE        those of them in an `impl` of the type that --type names
  expects        calls of .expect(…)
  calls          number of files that the file calls; below the table also the number of calls
  called by      number of files that call the file
  cycle          the number of the file's cycle, if it is in one. A cycle is a set of files of which
                 each reaches each other one by calls: a strongly connected component.

Which file a call reaches:
  a path         `receive::on_message(…)`, `Peer::new(…)`: what it names, through `use` and `super`.
                 A function that is handed on (`map(Peer::is_open)`) counts as called.
  self.name(…)   the method of the type. The same for parameters, variables and fields whose type
                 is written down and belongs to the directory, also in an Option or a collection.
  other.name(…)  the file that defines methods of this name, if there is only one, and if neither
                 common types of the standard library (`get`, `push`, `len`) nor the rest of the
                 crate have a method of that name.
Other calls of methods that the directory defines are ambiguous. --edges lists them. They do not
count, and are not in the graph.

To make a cycle smaller, turn a call that goes up the layers around: return to the caller what is to
be done, put it into a queue that the caller drains, or move what both files need into a file below
them.

Examples:
  cargo xtask structure                            bmi-core/src/endpoint
  cargo xtask structure --edges                    also every call from file to file
  cargo xtask structure --max-cycle 3              fails if a cycle has more than 3 files
  cargo xtask structure --type Manager fs-server/src/manager
  git worktree add ../before HEAD~20 && cargo xtask structure --root ../before
                                                   the same directory in an older commit

Exit status: 0 measured, 1 a cycle is longer than --max-cycle, 2 the files cannot be read.")]
pub(crate) struct StructureArgs {
    /// The directory, from the root.
    #[arg(value_name = "DIR", default_value = ENDPOINT)]
    directory: PathBuf,
    /// The root of the checkout to measure [default: this workspace].
    #[arg(long, value_name = "PATH")]
    root: Option<PathBuf>,
    /// The type whose fields and methods are counted.
    #[arg(long = "type", value_name = "TYPE", default_value = "Endpoint")]
    of_type: String,
    /// Fail if a cycle has more files than this.
    #[arg(long, value_name = "FILES")]
    max_cycle: Option<usize>,
    /// List the calls from file to file, with the functions, and the ambiguous calls.
    #[arg(long)]
    edges: bool,
    /// Print JSON instead of a table; it always has the calls.
    #[arg(long)]
    json: bool,
}

/// The directory that the test command checks.
const ENDPOINT: &str = "bmi-core/src/endpoint";
/// The most files that may be in a cycle there. Three files can be read together.
const MAX_CYCLE: usize = 3;
/// The exit status if the files cannot be read.
const FAILED: u8 = 2;

/// `cargo xtask structure`.
pub(crate) fn main(root: &Path, args: &StructureArgs) -> ExitCode {
    match run(root, args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(FAILED)
        }
    }
}

/// The step of the test command.
pub(crate) fn step(root: &Path) -> Result<Totals, Failure> {
    let report = measure(root, Path::new(ENDPOINT), "Endpoint")?;
    print!("{}", report.summary());
    match report.complaint(MAX_CYCLE) {
        None => Ok(Totals::NONE),
        Some(complaint) => {
            print!("{complaint}");
            let text = format!("a cycle of calls has {} files, at most {MAX_CYCLE} may", report.longest_cycle());
            Err(Failure::new(text))
        }
    }
}

/// Runs the command; returns whether no cycle is too long.
fn run(root: &Path, args: &StructureArgs) -> Result<bool, Failure> {
    let report = measure(args.root.as_deref().unwrap_or(root), &args.directory, &args.of_type)?;
    if args.json {
        let json = serde_json::to_string_pretty(&report).map_err(|error| Failure::new(error.to_string()))?;
        println!("{json}");
    } else {
        print!("{}\n{}", report.table(), report.summary());
        if args.edges {
            print!("\n{}", report.edges());
        }
    }
    let complaint = args.max_cycle.and_then(|most| report.complaint(most));
    if let Some(complaint) = &complaint {
        eprint!("\n{complaint}");
    }
    Ok(complaint.is_none())
}

/// Measures a directory of a checkout.
fn measure(root: &Path, directory: &Path, of_type: &str) -> Result<Report, Failure> {
    let sources = source::read(&root.join(directory))?;
    let (place, outside) = match source::module_in_crate(directory) {
        None => (None, BTreeSet::new()),
        Some(place) => {
            let src = directory.ancestors().nth(place.len()).unwrap_or(directory);
            let others = source::read_without(&root.join(src), &root.join(directory))?;
            let defined = Definitions::new(&others, &Names::new(&others, Some(Vec::new())));
            (Some(place), defined.methods.into_keys().collect())
        }
    };
    Ok(Report::new(&directory.to_string_lossy(), &sources, Surroundings { place, outside }, of_type))
}

/// What is known of the crate around the directory.
#[derive(Default)]
struct Surroundings {
    /// The path of the directory's module from the root of the crate, if it is known.
    place: Option<source::ModulePath>,
    /// The names of the methods that the rest of the crate defines.
    outside: BTreeSet<String>,
}

#[cfg(test)]
mod tests;
