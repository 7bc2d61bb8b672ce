//! Where a replica keeps its blocks.

use std::fs::{self, File};
use std::io::{ErrorKind as Io, Write};
use std::path::PathBuf;

use bmi::{Bytes, Error, ErrorKind};

use super::wire::{Held, Version};

/// A block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its version.
    pub version: Version,
    /// Its contents.
    pub bytes: Bytes,
}

impl Block {
    pub(super) fn held(block: Option<&Block>) -> Held {
        block.map_or(Held::default(), |block| Held { version: block.version, len: block.bytes.len() as u64 })
    }
}

/// A store of blocks: files in the program, a simulated disk in the test.
#[expect(async_fn_in_trait, reason = "a replica runs on one thread")]
pub trait Blocks {
    /// Returns the block of a key.
    ///
    /// # Errors
    /// Those of the disk.
    async fn get(&self, key: &str) -> Result<Option<Block>, Error>;

    /// Replaces the block of a key. When this returns, the block is durable. After a crash before
    /// that, the old block or the new one is there, never a mixture.
    ///
    /// # Errors
    /// Those of the disk.
    async fn put(&mut self, key: &str, block: Block) -> Result<(), Error>;
}

/// Blocks as files of a directory. It blocks the thread while it waits for the disk; a store for
/// production use would leave that to other threads.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Opens a directory. Creates it if it does not exist.
    ///
    /// # Errors
    /// `Io`.
    pub fn open(path: PathBuf) -> Result<Folder, Error> {
        fs::create_dir_all(&path)?;
        Ok(Folder(path))
    }

    fn path(&self, key: &str) -> PathBuf {
        let name: String = key.bytes().map(|byte| format!("{byte:02x}")).collect();
        self.0.join(format!("block-{name}"))
    }
}

impl Blocks for Folder {
    async fn get(&self, key: &str) -> Result<Option<Block>, Error> {
        let bytes = match fs::read(self.path(key)) {
            Err(error) if error.kind() == Io::NotFound => return Ok(None),
            read => Bytes::from(read?),
        };
        let version = *bytes.first_chunk().ok_or_else(|| Error::new(ErrorKind::Io, "a file without a version"))?;
        Ok(Some(Block { version: Version::decode(version), bytes: bytes.slice(version.len()..) }))
    }

    async fn put(&mut self, key: &str, block: Block) -> Result<(), Error> {
        // Write a new file and rename it, so that a crash leaves the old block or the new one.
        let (path, new) = (self.path(key), self.0.join("new"));
        let mut file = File::create(&new)?;
        file.write_all(&block.version.encode())?;
        file.write_all(&block.bytes)?;
        file.sync_all()?;
        fs::rename(new, path)?;
        Ok(File::open(&self.0)?.sync_all()?)
    }
}
