//! Manual pages and shell completions of a program, made from the definition of its command line.
//!
//! **Why.** `pvfs`, `pvfsd` and `bmi-perf` have the same two commands for them. A packager runs
//! each program, and needs nothing else of this workspace.
//!
//! **Layout of a page.** That of `clap_mangen`. The text after the help has sections of its own: a
//! paragraph that begins with `Examples` is the section EXAMPLES, one with `Exit status` is EXIT
//! STATUS, and others are NOTES.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Command, Subcommand};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

/// The commands, which a program flattens into its own.
#[derive(Clone, Debug, Subcommand)]
pub enum Manual {
    /// Print a script that completes this program's command line in a shell.
    #[command(after_help = "\
The script belongs where the shell looks for completions, under the name that the shell expects: for
bash in /usr/share/bash-completion/completions, for zsh in /usr/share/zsh/site-functions, for fish in
/usr/share/fish/vendor_completions.d.")]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write a manual page for each command into a directory.
    #[command(hide = true)]
    Man {
        /// The directory, which must exist.
        dir: PathBuf,
    },
}

impl Manual {
    /// Carries out the command for a program.
    ///
    /// # Errors
    /// If a file cannot be written. If the standard output is closed, there is nothing to do.
    pub fn run(&self, mut program: Command) -> io::Result<()> {
        match self {
            Manual::Completions { shell } => {
                let (name, mut script) = (program.get_name().to_owned(), Vec::new());
                clap_complete::generate(*shell, &mut program, name, &mut script);
                match io::stdout().write_all(&script) {
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                    done => done,
                }
            }
            Manual::Man { dir } => write_pages(program, dir),
        }
    }
}

/// Writes the pages of a program: `pvfs.1`, `pvfs-put.1`, and so on.
///
/// # Errors
/// If a file cannot be written.
pub fn write_pages(program: Command, dir: &Path) -> io::Result<()> {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    page(&program, dir)
}

fn page(command: &Command, dir: &Path) -> io::Result<()> {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        page(sub, dir)?;
    }
    let page = Man::new(command.clone());
    let mut file = File::create(dir.join(page.get_filename()))?;
    page.render_title(&mut file)?;
    page.render_name_section(&mut file)?;
    page.render_synopsis_section(&mut file)?;
    page.render_description_section(&mut file)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        page.render_options_section(&mut file)?;
    }
    if command.get_subcommands().any(|sub| !sub.is_hide_set()) {
        page.render_subcommands_section(&mut file)?;
    }
    let after = command.get_after_long_help().or(command.get_after_help());
    sections(&after.map(ToString::to_string).unwrap_or_default()).to_writer(&mut file)?;
    match command.get_version().or(command.get_long_version()) {
        Some(_) => page.render_version_section(&mut file),
        None => Ok(()),
    }
}

/// Returns the sections of the text after the help.
fn sections(after: &str) -> Roff {
    let mut roff = Roff::new();
    let mut last = "";
    for paragraph in after.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        let first = paragraph.lines().next().unwrap_or_default();
        let heading = match first {
            _ if first.starts_with("Example") => "EXAMPLES",
            _ if first.starts_with("Exit status") => "EXIT STATUS",
            _ => "NOTES",
        };
        match heading == last {
            true => roff.control("PP", []),
            false => roff.control("SH", [heading]),
        };
        last = heading;
        // The heading says it already.
        let text = match heading {
            "EXAMPLES" => paragraph.split_once('\n').map_or("", |(_, rest)| rest),
            "EXIT STATUS" => paragraph.trim_start_matches("Exit status").trim_start_matches(':').trim_start(),
            _ => paragraph,
        };
        // What is set in columns stays as it is.
        let is_verbatim = text.lines().any(|line| line.starts_with("  "));
        if is_verbatim {
            roff.control("nf", []);
        }
        text.lines().for_each(|line| _ = roff.text([roman(line)]));
        if is_verbatim {
            roff.control("fi", []);
        }
    }
    roff
}

/// Checks the pages and the completions of a program, in a test: each page has every option of its
/// command with a text, and a line for each of its subcommands. The completions for bash have all
/// commands.
///
/// # Panics
/// If something is missing.
pub fn check(program: &Command, dir: &Path) {
    program.clone().debug_assert();
    write_pages(program.clone(), dir).expect("pages are written");
    let mut built = program.clone().disable_help_subcommand(true);
    built.build();
    let mut script = Vec::new();
    clap_complete::generate(Shell::Bash, &mut program.clone(), program.get_name(), &mut script);
    let script = String::from_utf8(script).expect("a script is text");
    check_command(&built, dir, &script);
}

fn check_command(command: &Command, dir: &Path, script: &str) {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let page = std::fs::read_to_string(dir.join(format!("{name}.1"))).expect("each command has a page");
    // A hyphen in a page is escaped.
    let page = page.replace("\\-", "-");
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    assert!(!about.trim().is_empty(), "{name} has no description");
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        assert!(!help.trim().is_empty(), "{name}: {argument} has no description");
        if let Some(long) = argument.get_long() {
            assert!(page.contains(&format!("--{long}")), "{name}.1 has no --{long}");
        }
    }
    let after = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string).unwrap_or_default();
    for (begin, heading) in [("Example", "EXAMPLES"), ("Exit status", "EXIT STATUS")] {
        let is_in_help = after.split("\n\n").any(|paragraph| paragraph.starts_with(begin));
        assert!(!is_in_help || page.contains(heading), "{name}.1 has no {heading}");
    }
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let own = sub.get_display_name().unwrap_or_else(|| sub.get_name());
        assert!(page.contains(&format!("{own}(1)")), "{name}.1 does not list {own}");
        assert!(script.contains(sub.get_name()), "bash completes no {own}");
        check_command(sub, dir, script);
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    /// Does a thing.
    #[derive(Parser)]
    #[command(
        name = "thing",
        version,
        after_help = "Examples:\n  thing do   does it\n\nExit status: 0 done.\n\nA note."
    )]
    struct Thing {
        #[command(subcommand)]
        command: What,
    }

    #[derive(Subcommand)]
    enum What {
        /// Do it.
        Do {
            /// How often.
            #[arg(long)]
            how_often: u8,
        },
        #[command(flatten)]
        Manual(Manual),
    }

    #[test]
    fn a_page_has_sections_of_the_text_after_the_help() {
        let dir = tempfile::tempdir().unwrap();
        let (program, dir) = (Thing::command(), dir.path());
        check(&program, dir);
        let page = std::fs::read_to_string(dir.join("thing.1")).unwrap();
        assert!(page.contains(".SH EXAMPLES\n.nf\n  thing do   does it\n.fi\n"), "{page}");
        assert!(page.contains(".SH \"EXIT STATUS\"\n0 done.\n.SH NOTES\nA note.\n"), "{page}");
        assert!(!page.contains("thing\\-man") && !dir.join("thing-man.1").exists(), "{page}");
        let What::Manual(Manual::Man { .. }) = Thing::try_parse_from(["thing", "man", "d"]).unwrap().command else {
            panic!("no command")
        };
    }

    /// A check that finds nothing is none.
    #[test]
    #[should_panic(expected = "has no description")]
    fn an_option_without_a_description_is_found() {
        let bare = Command::new("bare").about("Bare.").arg(clap::Arg::new("x").long("x"));
        check(&bare, tempfile::tempdir().unwrap().path());
    }
}
