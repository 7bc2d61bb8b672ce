//! Commands on names, attributes and space.

mod attributes;
mod change;
mod list;
mod space;
mod walk;

use super::args::names::Names;
use super::output::Output;
use crate::Client;
use crate::program::Stop;

pub(super) use change::into_dir;

/// Runs a command.
pub(super) async fn run(client: &Client, command: Names, output: &mut Output) -> Result<(), Stop> {
    match command {
        Names::Ls { path, long, recursive } => list::ls(client, &path, long, recursive, output).await,
        Names::Mkdir { paths, parents } => change::mkdir(client, &paths, parents, output).await,
        Names::Stat { paths } => list::stat(client, &paths, output).await,
        Names::Rm { paths, recursive, force } => change::rm(client, &paths, recursive, force, output).await,
        Names::Mv { from, to } => change::mv(client, &from, &to, output).await,
        Names::Ln { target, link, symbolic, force } => change::ln(client, target, &link, symbolic, force, output).await,
        Names::Layout { paths, layout, default } => change::layout(client, &paths, &layout, default, output).await,
        Names::Touch { paths, reference, date, stamp, no_create } => {
            change::touch(client, &paths, reference.as_ref(), date.or(stamp), no_create, output).await
        }
        Names::Truncate { path, size } => change::truncate(client, &path, size, output).await,
        Names::Chmod { mode, paths, recursive } => attributes::chmod(client, &mode, &paths, recursive, output).await,
        Names::Chown { owner, paths, recursive } => attributes::chown(client, owner, &paths, recursive, output).await,
        Names::Du { paths, summarize, sizes } => space::du(client, &paths, summarize, sizes, output).await,
        Names::Df { sizes } => space::df(client, sizes, output).await,
    }
}
