//! Bytes that servers of this host lend in their own pages: what a reader has of them (`view`), and
//! what a file keeps mapped (`view_cache`). `file::shared_read` asks for them.

mod view;
mod view_cache;

pub(crate) use view::{Loan, Part};
pub use view::{SharedPlan, SharedView, Stale, ViewPiece};
pub(crate) use view_cache::{ViewCache, versions};
