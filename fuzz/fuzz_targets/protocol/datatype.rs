#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fs_proto::fuzz::datatype(bytes));
