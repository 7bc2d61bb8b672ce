//! Tests a command line: parses every option of every subcommand once, into the types of the
//! program.
//!
//! **Why.** `clap::Command::debug_assert` checks each command alone and never parses. It does not
//! find errors between commands, or between a value and the type that it is read into.
//! `workload … --path inline` panicked although `debug_assert` passed. The command above it had a
//! positional argument `path`, and the subcommand had a global option with the same id. When clap
//! hands global values from command to command, it uses only the id. So the program asked for a
//! value of one type and found a value of the other.
//!
//! **How.** For each option of each command, the test makes a command line: the names of the
//! commands, the option with a value, and the other arguments that the command requires. Options of
//! a command with subcommands are also given before a subcommand. One more line has no option.
//! Values come from the caller, from the argument's own default and possible values, and from a
//! short list.

use clap::{Arg, Command, Parser};

/// Values to try for arguments that the caller gives no value for.
const PLAUSIBLE: [&str; 5] = ["1", "2", "tcp", "/a", "2x2"];

/// Parses every option of every subcommand of `C` once, and returns the number of options.
///
/// `values` has values for arguments that need a particular one. An entry's name is the long name
/// of an option or the id of a positional argument. The value of an option may be followed by other
/// options that it needs: `2 --clients 8`.
///
/// # Panics
/// If clap or `C` panics, or if no line with some option is accepted. The message has the
/// lines and clap's errors.
pub fn every_option<C: Parser>(values: &[(&str, &str)]) -> usize {
    let mut root = C::command();
    root.build();
    let tried = visit::<C>(&root, &[root.get_name().to_owned()], values);
    assert!(tried > 0, "{} has no option", root.get_name());
    tried
}

fn visit<C: Parser>(command: &Command, names: &[String], values: &[(&str, &str)]) -> usize {
    accept::<C>(command, names, &[Vec::new()], values);
    let options = command.get_arguments().filter(|arg| !arg.is_positional());
    let mut tried = 0;
    for option in options.filter(|arg| !["help", "version"].contains(&arg.get_id().as_str())) {
        accept::<C>(command, names, &spellings(option, values), values);
        tried += 1;
    }
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let names: Vec<String> = names.iter().cloned().chain([sub.get_name().to_owned()]).collect();
        tried += visit::<C>(sub, &names, values);
    }
    tried
}

/// Parses the line with each spelling of an option, until one is accepted.
fn accept<C: Parser>(command: &Command, names: &[String], spellings: &[Vec<String>], values: &[(&str, &str)]) {
    let mut refused = Vec::new();
    for spelled in spellings {
        // Some options need the other arguments, and others exclude them.
        for rest in [tail(command, values, true), tail(command, values, false)] {
            let line: Vec<&String> = names.iter().chain(spelled).chain(&rest).collect();
            match C::try_parse_from(&line) {
                Ok(_) => return,
                Err(error) => refused.push(format!("{line:?}: {}", error.to_string().lines().next().unwrap_or(""))),
            }
        }
    }
    panic!("none of these lines is accepted, give values for the arguments:\n{}", refused.join("\n"));
}

/// Returns the option with each of its candidate values.
fn spellings(option: &Arg, values: &[(&str, &str)]) -> Vec<Vec<String>> {
    let name = match (option.get_long(), option.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => unreachable!("an option has a name"),
    };
    if !option.get_action().takes_values() {
        return vec![vec![name]];
    }
    let spelled = |value: String| std::iter::once(name.clone()).chain(value.split(' ').map(str::to_owned)).collect();
    candidates(option, option.get_long().unwrap_or_default(), values).into_iter().map(spelled).collect()
}

fn candidates(arg: &Arg, name: &str, values: &[(&str, &str)]) -> Vec<String> {
    let given = values.iter().filter(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    let default = arg.get_default_values().iter().filter_map(|value| Some(value.to_str()?.to_owned()));
    let possible = arg.get_possible_values().into_iter().map(|value| value.get_name().to_owned());
    given.chain(possible).chain(default).chain(PLAUSIBLE.map(str::to_owned)).collect()
}

/// Returns the arguments after the option: a value for each positional argument, or only for the
/// required ones. If a subcommand is required, the first one and its own arguments follow.
fn tail(command: &Command, values: &[(&str, &str)], all: bool) -> Vec<String> {
    let mut line = Vec::new();
    if let Some(sub) = command.get_subcommands().find(|_| command.is_subcommand_required_set()) {
        line.push(sub.get_name().to_owned());
        line.extend(tail(sub, values, all));
        return line;
    }
    for arg in command.get_positionals().filter(|arg| all || arg.is_required_set()) {
        line.extend(candidates(arg, arg.get_id().as_str(), values).into_iter().next());
    }
    line
}

#[cfg(test)]
mod tests {
    use clap::{Args, Subcommand};

    use super::*;

    /// The commands of `ab`, with the bug.
    #[derive(Parser)]
    struct Shared {
        #[command(subcommand)]
        command: Option<Job>,
        path: Option<std::path::PathBuf>,
    }

    #[derive(Subcommand)]
    enum Job {
        Workload(Place),
    }

    #[derive(Args)]
    struct Place {
        #[command(subcommand)]
        program: Program,
        #[arg(long, global = true)]
        path: Option<u16>,
    }

    #[derive(Subcommand)]
    enum Program {
        Access,
    }

    /// Two arguments with one id and two types pass `debug_assert`, but giving one of them panics.
    #[test]
    fn two_arguments_that_share_an_id_are_found() {
        <Shared as clap::CommandFactory>::command().debug_assert();
        let caught = std::panic::catch_unwind(|| every_option::<Shared>(&[]));
        let text = *caught.expect_err("found").downcast::<String>().expect("a text");
        assert!(text.contains("Mismatch between definition and access of `path`"), "{text}");
    }

    /// One option excludes an argument that the other one needs.
    #[derive(Parser)]
    struct Whole {
        #[arg(long, short, conflicts_with = "files")]
        list: bool,
        #[arg(long, value_parser = ["io", "europa"], requires = "files")]
        moon: Option<String>,
        #[arg(long, value_parser = planet)]
        planet: Option<String>,
        files: Vec<String>,
    }

    fn planet(text: &str) -> Result<String, String> {
        if text == "jupiter" { Ok(text.to_owned()) } else { Err("that is no planet".to_owned()) }
    }

    #[test]
    fn options_that_need_or_exclude_the_others_are_tried() {
        assert_eq!(every_option::<Whole>(&[("planet", "jupiter")]), 3);
    }

    #[test]
    fn an_option_whose_value_cannot_be_guessed_is_named() {
        let caught = std::panic::catch_unwind(|| every_option::<Whole>(&[]));
        let text = *caught.expect_err("no value").downcast::<String>().expect("a text");
        assert!(text.contains("--planet") && text.contains("that is no planet"), "{text}");
    }
}
