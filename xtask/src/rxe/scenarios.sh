#!/bin/sh
# Several processes that work together over verbs. Runs in the machine: sh scenarios.sh NAME. Each
# scenario is a function, and has passed if that succeeds; its output says what went wrong. To add
# one, write a function and add a line to scenario.rs.
set -eu

# Prints the index of the GID of RoCE v2 that holds an IPv4 address, once the port is active. It is
# found by its content: how many come before it depends on the kernel's settings for IPv6.
gid() {
    port=/sys/class/infiniband/rxe0/ports/1
    grep -q ACTIVE $port/state 2>/dev/null || return 1
    for index in 0 1 2 3 4 5 6 7; do
        if grep -q :0000:ffff: $port/gids/$index && grep -q v2 $port/gid_attrs/types/$index; then
            echo $index
            return
        fi
    done
    return 1
}

# Repeats a command until it succeeds, for a minute.
await() {
    for _ in $(seq 600); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    echo "waited for: $*"
    "$@"
}

ends_with() {
    expected=$1
    shift
    status=0
    "$@" || status=$?
    [ $status = "$expected" ] || { echo "$*: status $status, not $expected"; return 1; }
}

# Makes a file of so many bytes.
file() {
    mkdir -p "$(dirname "$1")"
    head -c "$2" /dev/urandom >"$1"
}

# Starts a manager and two I/O servers with the service $2 at the host $1.
cluster() {
    manager=ib://rxe0/$1:7100
    cat >pvfs.toml <<END
[cluster]
manager = "$manager"
iods = ["ib://rxe0/$1:7101", "ib://rxe0/$1:7102"]
[storage]
manager = "$PWD/manager"
iod = "$PWD/iod{index}"
[cache]
service = "$2"
memory = "8M"
dir = "$PWD"
END
    pvfsd --config pvfs.toml format
    server manager
    server iod 1
    server iod 0
}

# Starts a server, and returns when it serves. Its process is $server.
server() {
    log=server-$(echo "$*" | tr ' ' -)
    pvfsd --config pvfs.toml "$@" >"$log" 2>&1 &
    server=$!
    await grep -q ^serving "$log"
}

pvfs() {
    command pvfs -q --manager "$manager" "$@"
}

# Stores a file of so many bytes, and reads it back.
there_and_back() {
    file "$1" "$2"
    pvfs put "$1" "/$1"
    pvfs get "/$1" "$1.back"
    cmp "$1" "$1.back"
    rm "$1" "$1.back"
}

# Sizes for each path that data can take, and sizes next to its limits.
tree_with() {
    cluster 127.0.0.1 "$1"
    for entry in empty:0 inline:100 deep/strip:65536 deep/strip-and-one:65537 deep/er/odd:777777 deep/er/large:8388608; do
        file "source/${entry%:*}" "${entry#*:}"
    done
    pvfs put -r source /
    pvfs get -r /source copy
    diff -r source copy
    pvfs rm -r /source
    nothing_left
}

nothing_left() {
    left=$(pvfs ls /)
    [ -z "$left" ] || { echo "there is left: $left"; return 1; }
}

tree() { tree_with normal; }

# Reads are sent from the cache, and writes arrive there. It is smaller than the files.
cached_tree() { tree_with unifier; }

several_clients() {
    cluster 127.0.0.1 normal
    for client in 0 1 2 3; do
        file "from-$client" $((1000000 + client))
        pvfs put "from-$client" "/$client" & eval "put_$client=$!"
    done
    for client in 0 1 2 3; do eval "wait \$put_$client"; done
    for client in 0 1 2 3; do pvfs get "/$client" "back-$client" & eval "get_$client=$!"; done
    for client in 0 1 2 3; do
        eval "wait \$get_$client"
        cmp "from-$client" "back-$client"
    done
}

holds_data() { [ "$(du -sb "$1" | cut -f1)" -gt 1048576 ]; }

# The put still runs when its server is killed, because it reads from a pipe that is not closed. The
# pipe is opened for both, so that nobody waits for its other end.
killed_server() {
    cluster 127.0.0.1 normal
    mkfifo pipe
    exec 9<>pipe
    head -c 64M /dev/zero >&9 &
    command pvfs -q --manager "$manager" put pipe /torn --timeout 5s 9>&- & put=$!
    # The directory has a label and records before it has data. If the server were killed then, the
    # file would be created without it, and the put would not fail.
    await holds_data iod0
    kill -9 $server
    ends_with 1 wait $put
    server iod 0
    there_and_back after 1000000
}

kill_in() {
    sleep "$1"
    # It may have ended by itself.
    kill -9 "$2" 2>/dev/null || true
}

# Clients are killed at odd moments of large transfers in both directions.
killed_clients() {
    cluster 127.0.0.1 normal
    file victim 16777216
    pvfs put victim /whole
    for moment in 0 1 2; do
        command pvfs -q --manager "$manager" put victim /part-$moment & kill_in 0.${moment}6 $!
        command pvfs -q --manager "$manager" get /whole back-$moment & kill_in 0.$((moment + 1))1 $!
    done
    pvfs get /whole back
    cmp victim back
    there_and_back after 1000000
}

# `ab` compares every byte itself. Files of all size classes but the largest, which it makes itself.
ib_against_tcp() {
    for folder in 0 1 2 3; do
        for len in 0 100 3000 9000 40000 70000 150000 300000; do
            file tree/folder-$folder/file-$len $((len + folder))
        done
    done
    ab tree --quick --processes --over ib,tcp >table || { cat table; return 1; }
    sed 's/^/note: /' table
}

# Files of 1 MiB, one after another: the client's processor time for one of them. The work that
# Soft-RoCE and TCP leave to the kernel's own threads is not in it.
stream() {
    for number in $(seq 48); do file "stream/$number" 1048576; done
    ab stream --no-large --processes --over ib,tcp >table || { cat table; return 1; }
    sed -n -e 's/^file size/note: &/p' -e 's/^<= 1 MiB/note: &/p' table
}

# Serves bmi-perf until the end of the job. Its verbs are on the loopback, which the device serves.
perf_server() {
    bmi-perf serve 127.0.0.1 >perf-server 2>&1 &
    await grep -q 'listening at' perf-server
}

# One run of bmi-perf.
perf() {
    perf_server
    bmi-perf run 127.0.0.1 --over ib --rounds 1 --waiting polling --no-baseline --json report "$@" >&2
    echo "report: $(tr -d '\n' <report)"
}

# One run of bmi-perf between two processes, of the backend alone.
verbs() {
    bmi-perf here --over ib --interface backend --rounds 1 --no-baseline --json report "$@" >&2
    echo "report: $(tr -d '\n' <report)"
}

# A few messages of each test, because an emulated machine is slow. The figures mean nothing.
every_test() {
    perf_server
    bmi-perf run 127.0.0.1 --over ib,tcp --size 20000 --depth 4 --pieces 7 --rate 200 --count 5 --rounds 1 \
        --waiting sleeping --no-baseline --json report --test "$1"
    echo "report: $(tr -d '\n' <report)"
    # A device whose link is down is a line with its name, and an exit status.
    one="bmi-perf run 127.0.0.1 --over ib --test latency --size 8 --quick"
    ip link set d0 down
    # The port follows its link after a moment.
    await ends_with 2 $one
    $one 2>&1 | grep -q 'no port of rxe0 is active'
    ip link set d0 up
    await $one
}

# Data with verification, in which a wrong byte is a bad status, and names. 1000 bytes take the
# inline path; 100,000 touch both I/O servers.
bench_cluster() {
    cluster 127.0.0.1 normal
    for line in "io --verify --seed 7 --shared --transfer 1000 --block 8000 --segments 2" \
        "io --verify --seed 7 --file-per-task --transfer 100000 --block 800000 --random" "meta --files 10"; do
        pvfs --over ib bench $line --tasks 2 --rounds 2 --report report.json
        echo "report: $(tr -d '\n' <report.json)"
    done
    nothing_left
}

# Is a program listening? The kernel's table is read: the server would take a connection for a
# client.
listens() { awk -v port=":$1" '$4 == "0A" && index($2, port) { found = 1 } END { exit !found }' /proc/net/tcp /proc/net/tcp6; }

# Runs a server and its client, whose command line has the host in addition.
both() {
    port=$1
    shift
    "$@" >its-server 2>&1 & server=$!
    await listens "$port"
    "$@" 127.0.0.1
    wait $server
}

perftest() {
    program=$1
    shift
    # 4853 is 18515.
    both 4853 "$program" -d rxe0 -x "$(gid)" "$@"
}

# If this passes, a failure of another test is not the machine's fault.
perftest_alone() { perftest ib_send_lat -s 64 -n 200; }

# It compares the data that it receives.
ping_pong() { both 4854 ibv_rc_pingpong -d rxe0 -g "$(gid)" -p 18516 -s 4096 -n 100 -c; }

# It compares them, too. The lengths take an eager message, one by fast RDMA, and a rendezvous.
c_ping_pong() {
    ln -s "$(dirname "$(command -v pvfsd)")/deps/libbmi_c.so" libbmi.so.0
    cc -I "$RXE_TREE/bmi-c/include" -o c-ping-pong "$RXE_TREE/examples/c/pingpong.c" "$PWD/libbmi.so.0"
    for bytes in 8 20000 300000; do
        LD_LIBRARY_PATH=$PWD ./c-ping-pong server ib://rxe0/127.0.0.1:7300 >c-server 2>&1 & server=$!
        await grep -q listening c-server
        echo "note: $(LD_LIBRARY_PATH=$PWD ./c-ping-pong client ib://rxe0/127.0.0.1:7300 20 $bytes)"
        wait $server
    done
}

# A cluster at the address $1, for the other machine.
serve() {
    cluster "$1" normal
    echo "serving the other machine"
    wait
}

# Stores files at the other machine, $1, and reads them back.
transfer() {
    manager=ib://rxe0/$1:7100
    # Until that machine is up, there is no server to connect to.
    await pvfs ping
    there_and_back small 1000
    there_and_back middle 60000
    there_and_back large 4194304
    tc -s qdisc show dev eth0 >statistics
    dropped=$(sed -n 's/.*(dropped \([0-9]*\),.*/\1/p' statistics)
    echo "note: packets dropped on the way to the servers: $dropped"
    # The link loses one packet in two hundred, of several thousand.
    [ "$dropped" -gt 0 ]
}

scenario=$1
shift
[ "$scenario" != gid ] || { gid; exit; }
folder=$(mktemp -d)
cd "$folder"
# On failure the servers' last lines, whatever ended it.
trap 'status=$?; [ $status = 0 ] || tail -n 40 *server* 2>/dev/null; cd /run; rm -rf "$folder"; exit $status' EXIT
"$scenario" "$@"
