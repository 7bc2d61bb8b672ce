//! Limits on lengths and counts. They are checked when decoding, so that no length from the wire
//! causes an unchecked allocation or loop.

use bmi::hooks::step;
use bstr::BString;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;

/// Longest name of a file or directory, in bytes (as in Linux).
pub const MAX_NAME: usize = 255;
/// Longest path, and longest target of a symbolic link, in bytes (as in Linux).
pub const MAX_PATH: usize = 4096;
/// Most names of a file, as of ext4. Its number of names fits into any program's counter.
pub const MAX_LINKS: u32 = 65_000;
/// Longest value of an extended attribute, in bytes. As one row with its name, it fits into every
/// message.
pub const MAX_XATTR: usize = 4096;
/// Most extended attributes of one object. A list of the longest names still fits into a message.
pub const MAX_XATTRS: usize = 16;
/// Most regions in one request: 128 times the limit of the first paper ([PVFS-IB §6.7]). A request
/// of a few bytes can name that many if they are regular. So this limit also bounds the memory that
/// a server allocates for one request: 256 KiB.
pub const MAX_REGIONS: usize = 16_384;
/// Most servers that a file may be striped over, and most I/O servers of a cluster. An encoded
/// layout of this many servers stays below 4 KiB.
pub const MAX_SERVERS: usize = 256;
/// Longest address as text, in bytes: an address of verbs with the longest names of adapter and
/// host.
pub const MAX_ADDR: usize = 400;
/// Most further groups of a user for whom a request is made. As many as fit beside the longest path
/// into a request; Linux allows more, of which the first ones count.
pub const MAX_GROUPS: usize = 128;
/// Most addresses of one server.
pub const MAX_ADDRS: usize = 8;
/// Longest name of a machine, in bytes.
pub const MAX_HOST: usize = 64;
/// Largest offset in a file or datafile: the largest that the underlying systems can address.
pub const MAX_OFFSET: u64 = i64::MAX as u64;
/// Largest displacement, size and extent in a datatype. The difference of two displacements is
/// still a number of 64 bits with a sign.
pub const MAX_DISPLACEMENT: i64 = i64::MAX / 2;
/// Most levels of a datatype in normal form: two for each dimension of a distributed array of up to
/// 16 dimensions. A cursor has a frame of 24 bytes for each.
pub const MAX_TYPE_DEPTH: usize = 32;
/// Most nodes of a datatype. A loop or a list is a node, and so is each length of a block whose
/// elements are not contiguous. A node takes some 100 bytes of memory.
pub const MAX_TYPE_NODES: usize = 4096;
/// Most entries of all lists of a datatype together: as many as regions in a request, so that each
/// list of regions is a type. An entry takes 32 bytes of memory.
pub const MAX_TYPE_ENTRIES: usize = MAX_REGIONS;
/// Longest unit of a datafile in which a server joins the requests of several clients, in bytes. It
/// has a buffer of this size for each that is under way.
pub const MAX_JOINED: u64 = 1 << 20;
/// Longest range of a datafile whose space one request changes, in bytes. A file system in memory
/// clears some 100 ms long what it reserves.
pub const MAX_ALLOCATION: u64 = 256 << 20;
/// Smallest strip, in bytes: one page.
pub const MIN_STRIP: u64 = 4096;
/// Largest strip, in bytes.
pub const MAX_STRIP: u64 = 1 << 30;
/// Strip size of a file if the client requests no other, in bytes (PVFS's default).
pub const DEFAULT_STRIP: u64 = 64 << 10;
/// Most entries in one page of a directory.
pub const MAX_ENTRIES: usize = 4096;
/// Most entries in one page of a directory with attributes.
pub const MAX_LISTED: usize = 512;
/// Most datafiles that one request creates, discards or removes, and most that one reply lists.
pub const MAX_DATAFILES: usize = 1024;
/// Most files that one request releases.
pub const MAX_RELEASED: usize = 256;
/// Most files that one request closes. Each may be striped over all I/O servers.
pub const MAX_CLOSED: usize = 32;
/// Most datafiles in one reply about the state of a cache.
pub const MAX_CACHED_FILES: usize = 1024;
/// Most bytes of rows in one page of a backup: no message has room for more.
pub const MAX_BACKUP_PAGE: usize = 1 << 20;
/// Most rows in one page of a check.
pub const MAX_CHECKED: usize = 1024;
/// Longest text of an error, in bytes. Longer texts are cut.
pub const MAX_DETAIL: usize = 512;
/// Most ranges that an error names. If there are more, the last one covers the rest.
pub const MAX_ERROR_RANGES: usize = 16;

/// Bytes of a reply message that are reserved for everything beside the body. A page of a directory
/// is shorter by this much.
pub const REPLY_ROOM: usize = 64;

/// Deserializes a list of at most `MAX` elements. Allocates memory for the elements that have
/// arrived, not for the announced number.
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
                step();
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

/// Deserializes at most `MAX` bytes. They are borrowed until their length has been checked.
pub(crate) fn bytes<'de, const MAX: usize, T: From<Vec<u8>>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    let bytes = <&[u8]>::deserialize(deserializer)?;
    if bytes.len() > MAX {
        return Err(D::Error::custom("too many bytes"));
    }
    Ok(bytes.to_owned().into())
}

/// Deserializes the target of a symbolic link, if there is one.
pub(crate) fn target<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<BString>, D::Error> {
    match <Option<&[u8]>>::deserialize(deserializer)? {
        Some(target) if target.len() > MAX_PATH => Err(D::Error::custom("too many bytes")),
        target => Ok(target.map(BString::from)),
    }
}
