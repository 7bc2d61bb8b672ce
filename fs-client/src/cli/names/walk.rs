//! Requests for everything of a tree, many at the same time.

use crate::{Client, Error, ErrorCode, FsPath, Handle};
use futures_util::stream::{FuturesUnordered, StreamExt};

/// Number of requests in progress at the same time.
pub(super) const AT_ONCE: usize = 32;

/// Asks for `path`, and if `recursive` for everything below. `done` gets each result, in no order,
/// and the errors of directories that cannot be listed. What somebody removes meanwhile is left
/// out.
pub(super) async fn walk<T>(
    client: &Client,
    path: &FsPath,
    recursive: bool,
    ask: impl AsyncFn(&FsPath, Handle) -> Result<T, Error>,
    mut done: impl FnMut(&FsPath, Result<T, Error>),
) {
    let mut jobs = match client.lookup(path).await {
        Ok(entry) => vec![(path.clone(), entry.handle)],
        Err(error) => return done(path, Err(error)),
    };
    let (ask, mut running) = (&ask, FuturesUnordered::new());
    loop {
        while running.len() < AT_ONCE
            && let Some((at, handle)) = jobs.pop()
        {
            running.push(async move {
                let result = ask(&at, handle).await;
                let listed = match handle {
                    Handle::Dir(_) if recursive => client.readdir(&FsPath::of(handle)).await,
                    _ => Ok(Vec::new()),
                };
                (at, result, listed)
            });
        }
        let Some((at, result, listed)) = running.next().await else { break };
        let is_gone = |error: &Error| matches!(error.code(), ErrorCode::NotFound | ErrorCode::Stale) && at != *path;
        if !result.as_ref().is_err_and(is_gone) {
            done(&at, result);
        }
        match listed {
            Ok(entries) => {
                for entry in entries {
                    match at.join(&entry.name) {
                        Ok(child) => jobs.push((child, entry.handle)),
                        Err(error) => done(&at, Err(error)),
                    }
                }
            }
            Err(error) if is_gone(&error) => {}
            Err(error) => done(&at, Err(error)),
        }
    }
}
