#!/bin/sh
# The first process of a machine: it brings the NICs up, and then runs commands, one a line, that come over
# the second serial port. The answer to a command is `END`, its exit status and the bytes of its output, and
# then the output. Words of the kernel's command line: cards.id=N, cards.nic=MODULE.
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mkdir /var && ln -s /run /var/run
mount -t bpf bpf /sys/fs/bpf 2> /dev/null
for word in $(cat /proc/cmdline); do
	case $word in
	cards.id=*) id=${word#*=} ;;
	cards.nic=*) nic=${word#*=} ;;
	esac
done
echo "$id" > /run/id
hostname "vm$id"
# The last of the modules has the NIC; a driver that is built into the kernel is no module.
for module in virtio_pci $(echo "$nic" | tr , ' ') xsk_diag; do modprobe -q "$module"; done
tries=0
while ! [ -e /sys/class/net/eth1 ] && [ $tries -lt 100 ]; do usleep 100000; tries=$((tries + 1)); done
for name in all default eth0 eth1; do
	echo 0 > /proc/sys/net/ipv4/conf/$name/rp_filter
	echo 1 > /proc/sys/net/ipv4/conf/$name/arp_ignore
	echo 1 > /proc/sys/net/ipv6/conf/$name/disable_ipv6
done 2> /dev/null
ip link set lo up
stty -F /dev/ttyS1 raw -echo
exec 3<> /dev/ttyS1
echo READY >&3
while IFS= read -r line <&3; do
	timeout -s KILL 240 sh -c "$line" > /run/out 2>&1 < /dev/null 3>&-
	status=$?
	echo "END $status $(stat -c %s /run/out)" >&3
	cat /run/out >&3
done
