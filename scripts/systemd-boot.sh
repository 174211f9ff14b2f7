#!/usr/bin/env bash
# systemd-boot.sh NAME DIRECTORY FIFO: becomes the systemd of a machine of
# scripts/systemd-test.sh. It runs as the first process of new namespaces and writes a
# line to FIFO when systemd is about to run.
set -eu

mount --make-rprivate /
mount -t tmpfs tmpfs "$2"
mkdir "$2/upper" "$2/work" "$2/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$2/upper,workdir=$2/work" "$2/root"
fifo=$3
repo=$PWD
exec 9>"$fifo"
cd "$2/root"
mount -t proc proc proc
for d in run tmp dev; do mount -t tmpfs tmpfs $d; done
for d in null zero full random urandom tty net; do
  [ ! -e /dev/$d ] || { [ -d /dev/$d ] && mkdir dev/$d || : >dev/$d; mount --rbind /dev/$d dev/$d; }
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
: >dev/console
mount -t sysfs sysfs sys
mount --rbind /sys/fs/bpf sys/fs/bpf
if [ -e /sys/fs/cgroup/systemd ]; then
  mount -t tmpfs tmpfs sys/fs/cgroup
  mkdir sys/fs/cgroup/systemd sys/fs/cgroup/unified
  mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
  mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
else
  mount -t cgroup2 cgroup2 sys/fs/cgroup
fi
# The repository may be on a mount of its own.
mkdir -p ".$repo"
mount --bind "$repo" ".$repo"
# Nothing of this machine's services runs there.
rm -rf etc/systemd/system var/log/journal
echo "$1" >etc/hostname
mkdir -p etc/systemd/system
ip link set lo up
mkdir old
pivot_root . old
cd /
umount -l /old
rmdir /old
echo booting >&9
exec 9>&-
exec env -i PATH="$PATH" container=bifrost-test /lib/systemd/systemd --system --unit=basic.target
