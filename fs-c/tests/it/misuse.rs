//! Every function with every kind of bad argument that can be told. None of them panics.

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use bmi::Scheme;
use fs_c::*;

const INVALID: i64 = -22;
const TOO_LARGE: i64 = -27;

fn text() -> String {
    // SAFETY: it never is NULL, and stays until the next call of this thread fails.
    unsafe { CStr::from_ptr(pvfs_error()) }.to_str().unwrap().to_owned()
}

/// Each of the results is `EINVAL`, and has a text.
macro_rules! refused {
    ($($call:expr),* $(,)?) => {
        $({
            let result = i64::from($call);
            assert_eq!(result, INVALID, "{}: {}", stringify!($call), text());
            assert!(!text().is_empty());
        })*
    };
}

#[test]
fn null_is_refused() {
    // SAFETY: NULL is checked, and nothing else is given that is not valid.
    unsafe {
        let (mut attr, mut entry) = (std::mem::zeroed(), std::mem::zeroed());
        let (mut made, mut view, mut file, mut client) = (null_mut(), null_mut(), null_mut(), null_mut());
        let (mut dir, mut queue, buffer) = (null_mut(), null_mut(), null_mut());
        let path = c"/x".as_ptr();
        refused!(
            pvfs_connect(null(), 0, &mut client),
            pvfs_connect(c"tcp://localhost:1".as_ptr(), 0, null_mut()),
            pvfs_connect(c"nothing".as_ptr(), 0, &mut client),
            pvfs_open(None, path, 0, 0, None, &mut file, None),
            pvfs_publish(None, None),
            pvfs_read(None, buffer, 0, 0, None),
            pvfs_write(None, buffer, 0, 0, None),
            pvfs_read_list(None, null(), 0, null(), 0, None),
            pvfs_write_list(None, null(), 0, null(), 0, None),
            pvfs_read_view(None, None, 0, buffer, 0, None, 0, None),
            pvfs_write_view(None, None, 0, buffer, 0, None, 0, None),
            pvfs_sync(None, None),
            pvfs_truncate(None, 0, None),
            pvfs_fstat(None, &mut attr, None),
            pvfs_stat(None, path, &mut attr, None),
            pvfs_mkdir(None, path, None),
            pvfs_remove(None, path, 0, None),
            pvfs_rename(None, path, path, None),
            pvfs_opendir(None, path, &mut dir),
            pvfs_readdir(None, &mut entry),
            pvfs_queue_open(None, &mut queue),
            pvfs_queue_fd(None),
            pvfs_complete(None, null_mut(), 0),
            pvfs_type_bytes(1, null_mut()),
            pvfs_type_contiguous(1, None, &mut made),
            pvfs_type_vector(1, 1, 1, None, &mut made),
            pvfs_type_hvector(1, 1, 1, None, &mut made),
            pvfs_type_indexed(1, null(), null(), None, &mut made),
            pvfs_type_hindexed(0, null(), null(), None, &mut made),
            pvfs_type_struct(1, null(), null(), null(), &mut made),
            pvfs_type_subarray(1, null(), null(), null(), 0, None, &mut made),
            pvfs_type_subarray(0, null(), null(), null(), 9, None, &mut made),
            pvfs_type_resized(0, 1, None, &mut made),
            pvfs_type_size(None),
            pvfs_type_extent(None),
            pvfs_view_new(0, None, None, &mut view),
        );
        assert_eq!(i64::from(pvfs_type_bytes(u64::MAX, &mut made)), TOO_LARGE, "{}", text());
        assert!(made.is_null() && view.is_null() && file.is_null() && client.is_null() && queue.is_null());
        pvfs_close(None);
        pvfs_closedir(None);
        pvfs_disconnect(None);
        pvfs_queue_close(None);
        pvfs_type_free(None);
        pvfs_view_free(None);
    }
}

#[test]
fn bad_arguments_of_a_client_are_refused() {
    super::with_cluster(Scheme::Tcp, |_, manager| {
        let manager = std::ffi::CString::new(manager).unwrap();
        // SAFETY: what is not NULL is valid, except for lengths and places that are checked.
        unsafe {
            let (mut client, mut file, mut queue) = (null_mut(), null_mut(), null_mut());
            assert_eq!(pvfs_connect(manager.as_ptr(), 0, &mut client), 0, "{}", text());
            let open = |flags, place| pvfs_open(client.as_ref(), c"/f".as_ptr(), flags, 0o644, None, place, None);
            assert_eq!(open(PVFS_CREATE, &raw mut file), 0, "{}", text());
            assert_eq!(pvfs_queue_open(client.as_ref(), &mut queue), 0);
            let (given, mut bytes) = (file.as_ref(), [0u8; 8]);
            let buffer = bytes.as_mut_ptr().cast();
            let piece = pvfs_piece { base: null_mut(), len: 1 };
            let nowhere = pvfs_async { queue: null(), user: null_mut() };
            let odd = (&raw const bytes).cast::<pvfs_region>().wrapping_byte_add(1);
            refused!(
                open(PVFS_CREATE, null_mut()),
                open(1 << 20, &raw mut file),
                pvfs_open(client.as_ref(), null(), 0, 0, None, &mut file, None),
                pvfs_remove(client.as_ref(), c"/f".as_ptr(), 7, None),
                pvfs_rename(client.as_ref(), c"/f".as_ptr(), null(), None),
                pvfs_stat(client.as_ref(), c"/f".as_ptr(), null_mut(), None),
                pvfs_stat(client.as_ref(), c"/f".as_ptr(), null_mut::<pvfs_attr>().wrapping_byte_add(1), None),
                pvfs_read(given, null_mut(), 1, 0, None),
                pvfs_read(given, buffer, usize::MAX, 0, None),
                pvfs_write(given, buffer, isize::MAX as usize + 1, 0, None),
                pvfs_read(given, buffer, 8, 0, Some(&nowhere)),
                pvfs_read_list(given, &piece, 1, null(), 0, None),
                pvfs_read_list(given, null(), 1, null(), 0, None),
                pvfs_write_list(given, &piece, usize::MAX, null(), 0, None),
                pvfs_write_list(given, &piece, 0, odd, 1, None),
                pvfs_complete(queue.as_ref(), null_mut(), 1),
                pvfs_queue_open(client.as_ref(), null_mut()),
                pvfs_publish(given, None),
            );
            assert_eq!(pvfs_read(given, buffer, 8, u64::MAX - 3, None), TOO_LARGE, "{}", text());
            assert_eq!(i64::from(pvfs_truncate(given, u64::MAX, None)), TOO_LARGE, "{}", text());
            pvfs_queue_close(Some(Box::from_raw(queue)));
            pvfs_close(Some(Box::from_raw(file)));
            pvfs_disconnect(Some(Box::from_raw(client)));
            // Nobody listens any more at this port, as a rule.
            let refused = pvfs_connect(c"tcp://127.0.0.1:1".as_ptr(), 200, &mut client);
            assert!(refused < 0 && !text().is_empty());
        }
    });
}
