//! How long things may be. Checked when decoding, so that no length from the wire drives an
//! allocation or a loop unchecked.

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;

/// Longest name of a file or directory, in bytes (as Linux has it).
pub const MAX_NAME: usize = 255;
/// Longest path, in bytes (as Linux has it).
pub const MAX_PATH: usize = 4096;
/// Regions in one request: 128 times what the first paper had room for ([PVFS-IB §6.7]). A
/// request of a few bytes can name so many if they are regular, so this also bounds what a server
/// sets aside for one: 256 KiB.
pub const MAX_REGIONS: usize = 16_384;
/// Servers that a file may be striped over, and I/O servers of a cluster. A layout of this many
/// stays below 4 KiB encoded.
pub const MAX_SERVERS: usize = 256;
/// Longest address as text, in bytes: that of verbs, with the longest names of adapter and host.
pub const MAX_ADDR: usize = 400;
/// Addresses of one server.
pub const MAX_ADDRS: usize = 8;
/// Longest name of a machine, in bytes.
pub const MAX_HOST: usize = 64;
/// Largest offset in a file or datafile: what the systems below can address.
pub const MAX_OFFSET: u64 = i64::MAX as u64;
/// Smallest strip, in bytes: a page.
pub const MIN_STRIP: u64 = 4096;
/// Largest strip, in bytes.
pub const MAX_STRIP: u64 = 1 << 30;
/// The strip size that a file gets if nobody asks for another, in bytes (PVFS's).
pub const DEFAULT_STRIP: u64 = 64 << 10;
/// Entries in one page of a directory.
pub const MAX_ENTRIES: usize = 4096;
/// Longest text of an error, in bytes; longer ones are cut.
pub const MAX_DETAIL: usize = 512;
/// Ranges that an error names; the last one then covers the rest.
pub const MAX_ERROR_RANGES: usize = 16;

/// What stands beside the body of a reply in its message, in bytes: a page of a directory is that
/// much shorter.
pub const REPLY_ROOM: usize = 64;

/// Deserializes a list of at most `MAX` elements; sets memory aside for what has come, not for what
/// is announced.
pub(crate) fn bounded<'de, const MAX: usize, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct Bounded<T, const MAX: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Bounded<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MAX} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
            let announced = elements.size_hint().unwrap_or(0);
            if announced > MAX {
                return Err(A::Error::custom("list too long"));
            }
            let mut list = Vec::with_capacity(announced.min(64));
            while let Some(element) = elements.next_element()? {
                if list.len() == MAX {
                    return Err(A::Error::custom("list too long"));
                }
                list.push(element);
            }
            Ok(list)
        }
    }

    deserializer.deserialize_seq(Bounded::<T, MAX>(PhantomData))
}

/// Deserializes a text of at most `MAX` bytes. The text is borrowed until its length has been
/// checked.
pub(crate) fn text<'de, const MAX: usize, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = <&str>::deserialize(deserializer)?;
    if text.len() > MAX {
        return Err(D::Error::custom("text too long"));
    }
    Ok(text.to_owned())
}
