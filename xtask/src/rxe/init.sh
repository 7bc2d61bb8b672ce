#!/bin/busybox sh
# The first process of the machine. Makes the host's files its root, read-only, and goes on there.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
for module in /modules/*; do
    case $module in *.xz) unxz "$module" && module=${module%.xz} ;; esac
    insmod "$module" || echo "init: module $module cannot be loaded"
done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 root /host || echo "init: no files"
# Before anything runs there: until then /proc/self is the emulator, which serves the files.
mount -t proc proc /host/proc
mount -t sysfs sysfs /host/sys
mount -t devtmpfs devtmpfs /host/dev
mount -t tmpfs -o mode=1777 tmpfs /host/run
exec switch_root /host /bin/sh "$RXE_FOLDER/inside.sh"
