//! Listings of directories that change meanwhile.

use std::fs::File;
use std::mem::MaybeUninit;

use rustix::fs::{RawDir, SeekFrom, seek};

use crate::support::{World, shell};

/// Reads at most `most` names from a place on, each with the place behind it.
fn read(dir: &File, from: u64, most: usize) -> Vec<(String, u64)> {
    assert_eq!(seek(dir, SeekFrom::Start(from)), Ok(from));
    let (mut buffer, mut names) = ([MaybeUninit::uninit(); 8192], Vec::new());
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(entry) = entries.next().filter(|_| names.len() < most) {
        let entry = entry.unwrap();
        names.push((entry.file_name().to_str().unwrap().to_owned(), entry.next_entry_cookie()));
    }
    names
}

/// Before, a listing kept all of its names as long as the directory was open.
#[test]
fn a_place_leads_back_to_its_name_while_the_directory_changes() {
    let world = World::with("hard");
    shell(world.at(), "mkdir d; cd d; seq -f n%05g 10000 | xargs -P 32 -n 100 mkdir");
    let open = || File::open(world.at().join("d")).unwrap();
    let (whole, part) = (open(), open());
    let before = read(&whole, 0, usize::MAX);
    assert_eq!((before.len(), before[2].0.as_str(), before[10_001].0.as_str()), (10_002, "n00001", "n10000"));
    let begun = read(&part, 0, 700);
    assert_eq!(begun[..], before[..700]);
    // Every third name goes, and new ones are before, between and behind.
    shell(world.at(), "cd d; seq -f n%05g 3 3 10000 | xargs -P 32 -n 100 rmdir");
    shell(world.at(), "cd d; seq -f n%05gx 5 5 10000 | xargs -P 32 -n 100 mkdir; mkdir a z; mv n00001 y");
    let stays = |name: &str| name.parse::<u32>().map_or(true, |number| number % 3 != 0 && number != 1);
    let stayed = |names: &[(String, u64)]| -> Vec<String> {
        let old = names.iter().filter(|(name, _)| name.len() == 6 || name.starts_with('.'));
        old.map(|(name, _)| name.clone()).filter(|name| stays(name.trim_start_matches('n'))).collect()
    };
    for at in [10_001, 8_000, 4_098, 4_097, 512, 3, 4, 1, 0] {
        let after = stayed(&read(&whole, before[at].1, 5_000));
        let expected = stayed(&before[at + 1..]);
        assert!(after.len() >= expected.len().min(3_000) && expected.starts_with(&after), "behind {}", before[at].0);
    }
    // The places are as they were, also of what is read again.
    assert!(read(&whole, before[1].1, 9).iter().all(|one| before.contains(one)));
    let rest = read(&part, begun[699].1, usize::MAX);
    assert!(stayed(&rest) == stayed(&before[700..]));
    assert!(rest.iter().any(|(name, _)| name == "n10000x") && !rest.iter().any(|(name, _)| name == "a"));
    let again = read(&whole, 0, usize::MAX);
    assert_eq!(again.len(), 2 + 10_000 - 3_333 + 2_000 + 2);
    // A place behind all that was read of this directory.
    let later = read(&open(), again[7_000].1, usize::MAX);
    assert_eq!(later[..], again[7_001..]);
}
