//! Catches panics without printing them. A plan that is being shrunk fails a hundred times, and
//! only the last failure is of interest.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// On a thread that is catching: the message of the last panic.
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

fn describe(info: &PanicHookInfo<'_>) -> String {
    let text = info.payload_as_str().unwrap_or("a panic without a text");
    match info.location() {
        Some(at) => format!("{text} ({}:{})", at.file(), at.line()),
        None => text.to_owned(),
    }
}

/// Calls `f`. If it panics, returns the panic's message and location. Panics of other threads are
/// printed as usual.
pub(super) fn catch<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            let caught = CAUGHT.with_borrow_mut(|caught| match caught {
                Some(text) => {
                    if text.is_empty() {
                        *text = describe(info);
                    }
                    true
                }
                None => false,
            });
            if !caught {
                before(info);
            }
        }));
    });
    let outer = CAUGHT.replace(Some(String::new()));
    // Anything that `f` left unfinished is dropped with its world.
    let result = catch_unwind(AssertUnwindSafe(f));
    let text = CAUGHT.replace(outer).unwrap_or_default();
    result.map_err(|_| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_text() {
        let text = catch(|| panic!("number {}", 7)).unwrap_err();
        assert!(text.starts_with("number 7 (") && text.contains("panic_hook.rs:"), "{text}");
        assert_eq!(catch(|| 5), Ok(5));
    }
}
