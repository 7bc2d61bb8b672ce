#!/bin/busybox sh
# The machine's first process: file systems, modules, network, the RDMA device; then the plan; then off.
# /etc/link says which link to make: "veth" or "virtio OWN-ADDRESS LOSS".
# busybox's shell prefers its own programs to those on the path, and its own ip and tc know too little: those are called by their paths.
/bin/busybox --install -s /bin
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /dev/pts /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /tmp
read -r limit </etc/limit
# Whatever happens to the host's side, the machine does not outlive its limit.
{ sleep "$limit"; echo "init: the limit of $limit s is over"; poweroff -f; } &
while read -r module; do
    /usr/sbin/insmod "/modules/$module" || echo "init: module $module cannot be loaded"
done </etc/modules
ulimit -l unlimited
hostname rxe
read -r kind address loss </etc/link
/usr/bin/ip link set lo up
if [ "$kind" = veth ]; then
    device=d0
    /usr/bin/ip link add d0 mtu 9000 type veth peer name d1 mtu 9000
    /usr/bin/ip link set d1 up
else
    device=eth0
    /usr/bin/tc qdisc add dev eth0 root netem loss "$loss"
fi
/usr/bin/ip addr add "$address/24" dev "$device"
/usr/bin/ip link set "$device" up
/usr/bin/rdma link add rxe0 type rxe netdev "$device" || echo "init: no RDMA device"
if [ -e /etc/shell ]; then
    echo "rxe0 on $device, $address. \"exit\" turns the machine off, Ctrl-A X ends it at once."
    setsid cttyhack sh
else
    /bin/xtask rxe-inside || echo "init: the plan was not carried out: status $?"
fi
poweroff -f
