#!/bin/sh
# Goes on for init.sh: the network, the RDMA device, and then the lines of the host, each a command.
# The programs are the host's own, at their own paths. Only /run and /dev/shm can be written.
#
# An answer is the command's output, and then a line of its own with the byte 1 and its status. When
# a command has ended, every process that it has left behind is killed. "halt" ends it at once.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/run TMPDIR=/run
mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t devpts devpts /dev/pts
cd /run || busybox poweroff -f
# Whatever happens to the host's side, the machine does not outlive its limit.
{ sleep "$RXE_LIMIT"; echo "inside: the limit of $RXE_LIMIT s is over"; busybox poweroff -f; } &
modprobe -a $(echo "$RXE_MODULES" | tr , ' ') || echo "inside: a module cannot be loaded"
ulimit -l unlimited
ip link set lo up
if [ "$RXE_LINK" = veth ]; then
    device=d0
    ip link add d0 mtu 9000 type veth peer name d1 mtu 9000
    ip link set d1 up
else
    device=eth0
    tc qdisc add dev eth0 root netem loss 0.5%
fi
ip addr add "$RXE_ADDRESS/24" dev $device
ip link set $device up
rdma link add rxe0 type rxe netdev $device || echo "inside: no RDMA device"

if [ -n "$RXE_SHELL" ]; then
    echo "rxe0 on $device, $RXE_ADDRESS. \"exit\" turns the machine off, Ctrl-A X ends it at once."
    setsid -c -w sh </dev/ttyS0 >/dev/ttyS0 2>&1
    busybox poweroff -f
fi

# Prints the processes of jobs, which have sessions of their own. Threads of the kernel and zombies
# have no program.
jobs_left() {
    for folder in /proc/[0-9]*; do
        [ -e "$folder/exe" ] && read -r line <"$folder/stat" || continue
        # After the name: state, parent, group, session. Init is in the session 0.
        set -- ${line##*) }
        [ "$4" = 0 ] || echo "${folder#/proc/}"
    done 2>/dev/null
}

# Prints what the threads of the jobs wait for, as far as the kernel tells. The outermost frames are
# the same for all.
waits() {
    for process in $(jobs_left); do
        for thread in /proc/"$process"/task/*; do
            echo "  $process $(cat "$thread/comm"):" $(head -n 4 "$thread/stack")
        done
    done
}

end_jobs() {
    for _ in $(seq 200); do
        left=$(jobs_left)
        [ -n "$left" ] || return
        kill -9 $left 2>/dev/null
        sleep 0.01
    done
    echo "inside: processes are left that cannot be killed: $left"
}

until port=$(echo /dev/vport*) && [ -c "$port" ]; do sleep 0.05; done
exec 3<>"$port"
for _ in $(seq 300); do
    sh "$RXE_FOLDER/scenarios.sh" gid >/dev/null && break
    sleep 0.1
done
sh "$RXE_FOLDER/scenarios.sh" gid >/dev/null
printf '\n\001%d\n' $? >&3
while read -r line <&3; do
    case $line in
    halt) waits >&3; end_jobs >&3 ;;
    *)
        {
            setsid -w sh -c "$line"
            status=$?
            end_jobs
            printf '\n\001%d\n' $status
        } </dev/null >&3 2>&3 &
        ;;
    esac
done
busybox poweroff -f
