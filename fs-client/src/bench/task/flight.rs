//! Operations in flight.

use std::cell::RefCell;

use futures_util::future::try_join_all;

/// Calls `step` for each of `items`, in order. Keeps `number` calls in flight: each has a slot
/// below that number of its own.
///
/// # Errors
/// The first error of a step. The calls in flight are then abandoned.
pub(super) async fn each<T>(
    number: u32,
    items: impl Iterator<Item = T>,
    step: impl AsyncFn(usize, T) -> Result<(), String>,
) -> Result<(), String> {
    let (items, step) = (&RefCell::new(items), &step);
    // Not borrowed while a step runs.
    let next = || items.borrow_mut().next();
    let slots = (0..number as usize).map(async |slot| {
        while let Some(item) = next() {
            step(slot, item).await?;
        }
        Ok(())
    });
    try_join_all(slots).await.map(drop)
}
