//! Units, and the pool of buffers.

use super::*;

#[test]
fn units_cover_a_transfer_exactly() {
    for total in [0, 1, 99, 100, 101, 250] {
        let parts: Vec<Part> = parts(total, 100).collect();
        assert_eq!(parts.len() as u64, total.div_ceil(100));
        let mut at = 0;
        for part in parts {
            assert_eq!(part.at, at);
            assert!(part.len >= 1 && part.len <= 100);
            at += part.len;
        }
        assert_eq!(at, total);
    }
}

#[test]
fn failures_are_put_together() {
    let error = |code, offset, len| FsError::new(code, "").with_ranges([Region::new(offset, len)]);
    let mut failures = Failures::default();
    failures.note(error(ErrorCode::NoSpace, 100, 50));
    failures.note(error(ErrorCode::Io, 300, 1));
    failures.note(error(ErrorCode::Io, 50, 50));
    let error = failures.into_result().unwrap_err();
    assert_eq!((error.code, error.ranges), (ErrorCode::NoSpace, vec![Region::new(50, 100), Region::new(300, 1)]));
    assert_eq!(Failures::default().into_result(), Ok(()));
}
