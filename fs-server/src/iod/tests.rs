//! Tests of the settings and of the collection of failures.

use fs_proto::Region;

use super::transfer::Failures;
use super::*;

#[test]
fn every_setting_that_the_configuration_allows_has_zones() {
    for unit in [4096, 5000, 64 << 10, 100_000, 512 << 10, 64 << 20] {
        for buffers in [2, 3, 7, 64] {
            let settings = IodSettings { unit, buffers, depth: 3 };
            let zones = settings.zones().unwrap();
            zones.validate().unwrap();
            assert_eq!(zones.total, unit * buffers);
        }
    }
    assert_eq!(IodSettings::default().zones(), Ok(ZoneSettings::default()));
    for bad in [(0, 64, 3), (4096, 0, 3), (4096, 64, 0), (usize::MAX, 2, 3)] {
        let settings = IodSettings { unit: bad.0, buffers: bad.1, depth: bad.2 };
        assert_eq!(settings.zones().map_err(|error| error.code), Err(ErrorCode::Invalid));
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
