//! The operations (`calls`), what they hold and how they move bytes (`inner`), and the work beside
//! them (`background`). Each step that changes something is in `state`.

mod background;
mod calls;
mod inner;

pub use calls::{Cache, Hold, Reading, Writing};
pub use inner::yield_now;
