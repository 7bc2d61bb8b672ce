//! The program `pvfs-mount`, which mounts the file system. See `pvfs-mount --help`.

fn main() -> std::process::ExitCode {
    fs_mount::main()
}
