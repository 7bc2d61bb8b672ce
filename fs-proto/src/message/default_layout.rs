//! How new files of a directory are striped.

use std::fmt;

use bmi::hooks::steps;

use crate::distribution::Distribution;
use crate::error::{ErrorCode, FsError};
use crate::limits::MIN_STRIP;

/// How new files of a directory are striped, unless their creator says it. It is an extended
/// attribute of the directory, so it can be set through a mount, and is in the manager's backups. A
/// new directory takes over that of the directory above.
///
/// As text: `strip=1M servers=4`, in any order, each at most once. One that is missing is the
/// default of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefaultLayout {
    /// Size of a strip in bytes; 0 for the default of the cluster.
    pub strip_size: u64,
    /// The most servers of a file. There are fewer while others are down. 0 for all.
    pub servers: u32,
}

impl DefaultLayout {
    /// The name of the extended attribute.
    pub const XATTR: &str = "user.pvfs.layout";
    /// Bytes of the longest text.
    const LONGEST: usize = 64;

    /// Reads the text.
    ///
    /// # Errors
    /// `Invalid` with what is wrong.
    pub fn parse(text: &[u8]) -> Result<DefaultLayout, FsError> {
        let invalid = |what: &str| {
            let text = format!("{what:?} is not a layout; write strip=1M servers=4");
            FsError::new(ErrorCode::Invalid, text)
        };
        let Some(text) = str::from_utf8(text).ok().filter(|text| text.len() <= DefaultLayout::LONGEST) else {
            let what = "the value is not a text of at most 64 bytes";
            return Err(FsError::new(ErrorCode::Invalid, what));
        };
        steps(text.len());
        let mut layout = DefaultLayout::default();
        for word in text.split_ascii_whitespace() {
            let (name, value) = word.split_once('=').ok_or_else(|| invalid(word))?;
            match (name, bytes(value)) {
                ("strip", Some(size @ 1..)) if layout.strip_size == 0 => layout.strip_size = size,
                ("servers", Some(count @ 1..)) if layout.servers == 0 => {
                    layout.servers = u32::try_from(count).map_err(|_| invalid(word))?;
                }
                _ => return Err(invalid(word)),
            }
        }
        let strip_size = if layout.strip_size == 0 { MIN_STRIP } else { layout.strip_size };
        Distribution::simple_stripe(strip_size, layout.servers.max(1))?;
        Ok(layout)
    }
}

/// Returns a number, with `K`, `M` or `G` for a power of 1024.
fn bytes(text: &str) -> Option<u64> {
    let number = text.trim_end_matches(['K', 'M', 'G']);
    let shift = match &text[number.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

impl fmt::Display for DefaultLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DefaultLayout { strip_size, servers } = self;
        let of = |name: &str, value: u64| if value == 0 { String::new() } else { format!("{name}={value}") };
        let words = [of("strip", *strip_size), of("servers", (*servers).into())];
        f.write_str(words.join(" ").trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_layout_is_read_in_any_order() {
        let read = |text: &str| DefaultLayout::parse(text.as_bytes()).map_err(|error| error.code);
        assert_eq!(read("servers=4  strip=1M"), Ok(DefaultLayout { strip_size: 1 << 20, servers: 4 }));
        assert_eq!(read("strip=4096"), Ok(DefaultLayout { strip_size: 4096, servers: 0 }));
        assert_eq!(read(""), Ok(DefaultLayout::default()));
        let wrong = [
            "strip",
            "strip=",
            "strip=0",
            "strip=1KK",
            "strip=1",
            "strip=4K strip=8K",
            "servers=257",
            "servers=-1",
            "x=1",
        ];
        wrong.iter().for_each(|text| assert_eq!(read(text), Err(ErrorCode::Invalid), "{text}"));
        assert_eq!(read("strip=99999999999999999999G"), Err(ErrorCode::Invalid));
        assert_eq!(read(&" ".repeat(65)), Err(ErrorCode::Invalid));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(strip_size in MIN_STRIP..=crate::limits::MAX_STRIP, servers in 0..=256_u32) {
            let layout = DefaultLayout { strip_size, servers };
            prop_assert_eq!(DefaultLayout::parse(layout.to_string().as_bytes()), Ok(layout));
        }

        #[test]
        fn no_text_panics(text: Vec<u8>) {
            let _ = DefaultLayout::parse(&text);
        }
    }
}
