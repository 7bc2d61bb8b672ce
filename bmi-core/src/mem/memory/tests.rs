use super::*;

#[test]
fn a_vector_comes_back_without_a_copy() {
    let vec = vec![7u8; 100];
    let ptr = vec.as_ptr();
    let back = Memory::from(vec).into_vec();
    assert_eq!((back.as_ptr(), back.len()), (ptr, 100));
}

#[test]
fn exclusive_access_needs_the_only_handle() {
    let mut memory = Memory::zeroed(10).unwrap();
    let other = memory.slice(2, 3);
    assert!(memory.get_mut().is_none());
    drop(other);
    memory.get_mut().unwrap()[9] = 1;
    assert_eq!(memory.to_vec()[9], 1);
}

#[test]
fn bytes_go_in_and_come_out_without_a_copy() {
    let bytes = Bytes::from(vec![7; 100]).slice(10..60);
    let memory = Memory::from(bytes.clone());
    assert_eq!((memory.as_ptr().cast_const(), memory.len()), (bytes.as_ptr(), 50));
    assert_eq!(memory.clone().into_bytes().as_ptr(), bytes.as_ptr());
    let bytes = BytesMut::from(&[8; 100][..]);
    let ptr = bytes.as_ptr();
    let mut memory = Memory::from(bytes);
    memory.get_mut().unwrap()[3] = 9;
    let bytes = memory.into_bytes();
    assert_eq!((bytes.as_ptr(), bytes.len(), bytes[2], bytes[3]), (ptr, 100, 8, 9));
    let memory = Memory::from(vec![1, 2, 3]);
    let ptr = memory.as_ptr().cast_const();
    assert_eq!(memory.into_bytes().as_ptr(), ptr);
    let memory = Memory::zeroed(10).unwrap();
    let ptr = memory.as_ptr().cast_const();
    assert_eq!(Bytes::from(memory).as_ptr(), ptr);
}

#[test]
fn bytes_of_memory_that_is_in_use_are_a_copy() {
    let memory = Memory::from(vec![1, 2, 3]);
    let in_use = memory.all();
    let bytes = memory.into_bytes();
    in_use.copy_from(&[9]);
    assert_eq!(bytes[..], [1, 2, 3]);
}

#[test]
fn read_only_memory_is_never_written() {
    let bytes = Bytes::from_static(b"in the text segment");
    let mut memory = Memory::from(bytes);
    assert!(memory.is_read_only() && memory.get_mut().is_none());
    let target = memory.all();
    let source = Memory::from(vec![0; 4]);
    let writes: [&dyn Fn(); 3] = [&|| memory.copy_from(0, &[1]), &|| target.copy_from(&[1]), &|| {
        assert!(target.copy_from_slice_of(&source.all()) > 0)
    }];
    for write in writes {
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(write)).is_err());
    }
    assert_eq!(memory.to_vec(), b"in the text segment");
}

#[test]
fn bytes_of_another_owner_may_be_read_only() {
    static BYTES: [u8; 4] = [1, 2, 3, 4];
    // SAFETY: the bytes are static, and nobody writes to them.
    let mut memory =
        unsafe { Memory::from_raw_parts_read_only(NonNull::from(&BYTES).cast(), BYTES.len(), Box::new(())) };
    assert!(memory.is_read_only() && memory.get_mut().is_none());
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| memory.copy_from(0, &[9]))).is_err());
    assert_eq!(memory.into_bytes()[..], [1, 2, 3, 4]);
}

#[test]
fn zeroed_memory_begins_on_a_page_whatever_its_length() {
    for len in [1, PAGE, FRESH - 1, FRESH, FRESH + 1, 3 << 20] {
        let memory = Memory::zeroed(len).unwrap();
        assert!((memory.as_ptr() as usize).is_multiple_of(PAGE) && memory.len() == len);
        memory.copy_from(len - 1, &[7]);
        assert_eq!(memory.to_vec().iter().filter(|byte| **byte != 0).count(), 1);
    }
}

/// A regression test. All pages of a buffer were written to zero them, so that an idle endpoint
/// cost 1.5 MiB.
#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn pages_that_nobody_touched_are_not_there() {
    let resident = || -> usize {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
    };
    let (before, len) = (resident(), 512 << 20);
    let memory = Memory::zeroed(len).unwrap();
    memory.copy_from(len / 2, &[7]);
    assert!(resident() < before + len / 2, "{before} and then {}", resident());
}

#[test]
fn copies_at_every_alignment() {
    let pattern: Vec<u8> = (0..700u32).map(|at| (at * 7) as u8).collect();
    for offset in 0..16 {
        for len in (0..40).chain(250..300).chain([511, 512, 600]) {
            let memory = Memory::zeroed(640).unwrap();
            memory.copy_from(offset, &pattern[..len]);
            let mut expected = vec![0; 640];
            expected[offset..offset + len].copy_from_slice(&pattern[..len]);
            assert_eq!(memory.to_vec(), expected, "in, {len} bytes at {offset}");
            let mut out = vec![0; len];
            memory.copy_to(offset, &mut out);
            assert_eq!(out, pattern[..len], "out, {len} bytes at {offset}");
            let other = Memory::zeroed(640).unwrap();
            other.slice(3, 620).copy_from_slice_of(&memory.slice(offset, len));
            assert_eq!(other.to_vec()[3..3 + len], pattern[..len], "between, {len} bytes at {offset}");
        }
    }
}

#[test]
fn pieces_go_to_their_places_and_come_back() {
    for len in [1usize, 3, 4, 5, 8, 16, 100] {
        let (source, spread) =
            (Memory::from((0..=255u8).cycle().take(len * 20 + 3).collect::<Vec<u8>>()), vec![9; 5000]);
        let spread = Memory::from(spread);
        let places = Strided { at: 7, len, every: len + 11, count: 20 };
        assert_eq!(spread.scatter(&source.slice(3, len * 20), places), len * 20);
        let (bytes, from) = (spread.to_vec(), source.to_vec());
        let mut expected = vec![9; 5000];
        for index in 0..20 {
            expected[7 + index * (len + 11)..][..len].copy_from_slice(&from[3 + index * len..][..len]);
        }
        assert_eq!(bytes, expected, "{len}");
        let back = Memory::from(vec![1; len * 20 + 3]);
        assert_eq!(spread.gather(&back.slice(3, len * 20), places), len * 20);
        assert_eq!(back.to_vec()[3..], from[3..], "{len}");
        assert_eq!(back.to_vec()[..3], [1; 3], "{len}");
    }
}

#[test]
fn places_beyond_a_memory_are_refused() {
    let refused = |places: Strided, bytes: usize| {
        let (memory, other) = (Memory::from(vec![0; 10]), Memory::from(vec![0; bytes]));
        let copies: [&dyn Fn(); 2] =
            [&|| _ = memory.scatter(&other.all(), places), &|| _ = memory.gather(&other.all(), places)];
        copies.map(|copy| catch_unwind(AssertUnwindSafe(copy)).is_err()) == [true, true]
    };
    let places = |at, len, every, count| Strided { at, len, every, count };
    assert!(!refused(places(2, 4, 4, 2), 8) && !refused(places(10, 0, 0, 3), 0) && !refused(places(3, 1, 0, 0), 0));
    assert!(refused(places(2, 4, 5, 2), 8), "beyond the memory");
    assert!(refused(places(2, 4, 4, 2), 7), "more than the other has");
    assert!(refused(places(11, 0, 0, 1), 0) && refused(places(0, 1, usize::MAX, 3), 3), "far beyond");
    assert!(refused(places(0, usize::MAX, 0, 1), 9) && refused(places(0, usize::MAX / 2 + 1, 0, 2), 9));
}
