//! The manager: the namespace, drafts, changes of size at several I/O servers, and what it does
//! while its commits take time.

use super::*;

mod commits;
mod contents;
mod drafts;
mod fsck;
mod holds;
mod loops;
mod maintenance;
mod names;
mod sent_again;
mod truncate;
mod truncate_failures;
