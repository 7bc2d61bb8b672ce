# Tries the package /pvfs.deb: installs it in the bare root $1, begins a cluster, uses it as a user
# and through mount(8), and purges it. Runs in namespaces of its own, outside of the root first.
set -eux
if [ -n "${1:-}" ]; then
    ip link set lo up
    mount -t proc proc "$1/proc"
    mount -t sysfs sysfs "$1/sys"
    touch "$1/dev/fuse"
    mount --bind /dev/fuse "$1/dev/fuse"
    echo 127.0.0.1 localhost > "$1/etc/hosts"
    exec chroot "$1" sh /bare_root.sh
fi

files() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/lib/dpkg -o -path /var/log/dpkg.log \) -prune -o -print | sort
}
mkdir -p /mnt/pvfs
files > /tmp/before

dpkg --install /pvfs.deb
pvfsd --config /tmp/pvfs.toml init --dir /var/lib/pvfs
cmp /tmp/pvfs.toml /etc/pvfs/pvfs.toml
sed -n 's/^ExecStart="\([^"]*\)" --config "\([^"]*\)".*/\1 \2/p' /usr/lib/systemd/system/pvfs-*.service > /tmp/named
test "$(sort -u /tmp/named)" = "/usr/bin/pvfsd /etc/pvfs/pvfs.toml"

cd /etc/pvfs
pvfsd format
pvfsd start
export PVFS_MANAGER=tcp://localhost:7000
pvfs --quiet put /pvfs.deb /a
pvfs --quiet get /a /tmp/a
cmp /pvfs.deb /tmp/a

# mount(8) runs mount.pvfs; then a line of fstab, by its directory and with all others.
used() {
    cmp /pvfs.deb /mnt/pvfs/a
    grep " /mnt/pvfs fuse.pvfs $1" /proc/mounts
    umount /mnt/pvfs
    if mountpoint /mnt/pvfs; then exit 1; fi
}
mount -t pvfs tcp://localhost:7000 /mnt/pvfs -o soft,timeo=10s,ro,noexec
used ro,nosuid,nodev,noexec
echo "tcp://localhost:7000 /mnt/pvfs pvfs rw,noatime,_netdev,nofail,x-systemd.automount 0 0" > /tmp/fstab
mount --fstab /tmp/fstab /mnt/pvfs
used rw,nosuid,nodev,noatime
mount --fstab /tmp/fstab --all
mount --fstab /tmp/fstab --all
used rw,nosuid,nodev,noatime
pvfs mount /mnt/pvfs
mount -o remount,ro /mnt/pvfs
used ro,
pvfsd stop

# What is left is the data, and the directory that was mounted on.
dpkg --purge pvfs
files > /tmp/after
if diff /tmp/before /tmp/after | grep '^[<>]' | grep -v '^> /var/lib/pvfs'; then exit 1; fi
test -s /var/lib/pvfs/manager/metadata.redb
