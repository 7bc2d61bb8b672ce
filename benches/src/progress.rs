//! What is being measured now, on a terminal.

use std::io::IsTerminal;

/// Shows which row is next. An empty text clears the line.
pub fn show(row: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r{:60}\r{row}", "");
    }
}
