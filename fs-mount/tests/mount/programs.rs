//! Programs that know nothing of this file system.

use std::path::Path;

use crate::support::{World, has, shell};

/// The kinds of coherence with which a mount keeps anything.
const KEEPING: [&str; 2] = ["hard", "hard,coherence=exclusive"];

#[test]
fn a_source_tree_is_copied_in_and_out_and_is_the_same() {
    for world in KEEPING.map(World::with) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fs-client/src");
        let (source, back) = (source.display(), world.beside().join("back"));
        shell(world.at(), &format!("cp -r {source} tree; diff -r {source} tree; cp -r tree {}", back.display()));
        shell(
            world.at(),
            &format!("diff -r {source} {}; ls -lR tree > /dev/null; rm -r tree; test -z \"$(ls -A)\"", back.display()),
        );
    }
}

#[test]
fn git_clones_and_sees_no_change() {
    if !has("git") {
        return;
    }
    for world in KEEPING.map(World::with) {
        let made = "git init -q one; cd one; git config user.email a@b; git config user.name a; mkdir d; \
                    for n in $(seq 50); do echo $n > d/$n; done; git add .; git commit -qm first";
        shell(world.at(), made);
        shell(
            world.at(),
            "git clone -q one two; cd two; git fsck --strict; git gc -q; test -z \"$(git status --porcelain)\"",
        );
        assert_eq!(shell(world.at(), "cd two; echo x >> d/7; git status --porcelain"), " M d/7\n");
    }
}

#[test]
fn an_archive_keeps_modes_times_and_links() {
    for world in KEEPING.map(World::with) {
        let made =
            "mkdir t; echo a > t/a; ln t/a t/b; ln -s a t/c; chmod 640 t/a; touch -d @1000000000 t/a; tar cf t.tar t";
        shell(world.beside(), made);
        shell(world.at(), "tar xf ../t.tar; tar df ../t.tar; test t/a -ef t/b; diff -r t ../t");
    }
}

#[test]
fn a_database_with_a_log_is_used_by_two_processes() {
    if !has("sqlite3") {
        return;
    }
    for world in KEEPING.map(World::with) {
        shell(world.at(), "sqlite3 a.db 'pragma journal_mode=wal; create table t(x);'");
        let insert =
            "for n in $(seq 20); do sqlite3 -cmd '.timeout 60000' a.db 'insert into t values(1);' || exit 1; done";
        shell(world.at(), &format!("({insert}) & one=$!; ({insert}) & two=$!; wait $one; wait $two"));
        assert_eq!(shell(world.at(), "sqlite3 a.db 'select count(*) from t; pragma integrity_check;'"), "40\nok\n");
    }
}

#[test]
fn what_is_synchronised_twice_is_not_copied_again() {
    if !has("rsync") {
        return;
    }
    for world in KEEPING.map(World::with) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let sync = format!("rsync -a --stats {}/ tree | grep 'files transferred'", source.display());
        shell(world.at(), &sync);
        assert!(shell(world.at(), &sync).trim_end().ends_with(": 0"));
    }
}

#[test]
fn what_fio_writes_at_random_places_and_appends_is_what_it_reads() {
    if !has("fio") {
        return;
    }
    for world in KEEPING.map(World::with) {
        let fio = "fio --minimal --size=256k --verify=crc32c --verify_fatal=1 --do_verify=1 --ioengine=psync --thread";
        shell(world.at(), &format!("{fio} --name=places --rw=randrw --bsrange=1k-16k --fsync=8"));
        let appended = "--name=appended --filename=places.0.0 --rw=write --bs=4k --file_append=1";
        shell(world.at(), &format!("{fio} {appended}; test $(stat -c %s places.0.0) = 524288"));
    }
}
