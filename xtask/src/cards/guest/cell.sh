#!/bin/sh
# Steps of a cell in a machine. The log of the daemon is /tmp/lnetd.log.
#   device NAME MTU    gives /run/device: eth0 itself, or a device upon it, with the address 10.97.0.N
#   start SHARDS       starts the daemon and configures the node
#   harm WORDS         has netem do so to what eth0 sends
#   harmed             tells what netem has sent
#   add NET MODE PORT  adds the net on /run/device
#   ping NID           again, for 40 seconds
#   target             the load's far end
#   load NID MESSAGES  the load, verified at both ends
#   loads STEP NID MESSAGES  loads, one after the other, until that step is over
#   cuts               cuts one slave of a bond after the other
#   changes            changes what the kernel lets one change of eth0, and back
#   renewed, killed    deletes and adds the net; kills the daemon, and starts another one
#   serve, ask, served a service with a node of its own; three requests with bulk data to it; its end
#   vlan               makes a VLAN device on eth0, tells the Ethernet address
#   strangers MAC N    sends so many frames by it that look like the other machine's but for their tag
#   frames             frames of the XDP program
#   queues             frames by receive queue, as the node has counted them in the end
#   state              `key: value` lines of what came of it
#   stop               ends the daemon
id=$(cat /run/id)
other=$((3 - id))

device() {
	! [ -e /run/socat.pid ] || { kill "$(cat /run/socat.pid)" && rm /run/socat.pid; }
	tc qdisc del dev eth0 root 2> /dev/null
	for name in upper lower other tunl0; do ip link del "$name" 2> /dev/null; done
	for name in eth0 eth1; do
		ip link set "$name" nomaster 2> /dev/null
		ip address flush dev "$name"
		ip link set "$name" down
		ip link set "$name" address "$(ethtool -P "$name" | grep -oE '([0-9a-f]{2}:){5}[0-9a-f]{2}')"
	done
	ip link set eth0 mtu "$2" || return 1
	device=upper
	case $1 in
	plain) device=eth0 ;;
	vlan) ip link set eth0 up && ip link add link eth0 name upper type vlan id 7 ;;
	bridge) ip link add upper type bridge stp_state 0 forward_delay 0 && ip link set eth0 master upper && ip link set eth0 up ;;
	active-backup | balance-xor | 802.3ad)
		ip link add upper type bond mode "$1" miimon 100 || return 1
		if [ "$1" = 802.3ad ]; then
			# A partner that is silent is left out after three seconds. Links whose speed is unknown have none.
			ip link set upper type bond lacp_rate fast || return 1
			case $(readlink /sys/class/net/eth0/device/driver) in
			*virtio*) for name in eth0 eth1; do ethtool -s "$name" speed 1000 duplex full; done ;;
			esac
		fi
		ip link set eth0 master upper && ip link set eth1 master upper && ip link set eth0 up && ip link set eth1 up
		;;
	team)
		ip link add upper type team && teamnl upper setoption mode activebackup || return 1
		# As teamd does: the kernel gives the team an address that none of its ports has.
		for name in upper eth1; do ip link set "$name" address "$(cat /sys/class/net/eth0/address)" || return 1; done
		ip link set eth0 master upper && ip link set eth1 master upper && ip link set eth0 up && ip link set eth1 up &&
			teamnl upper setoption activeport "$(cat /sys/class/net/eth0/ifindex)"
		;;
	veth)
		ip link add upper type veth peer name inner && ip link add lower type bridge stp_state 0 forward_delay 0 || return 1
		for name in eth0 inner; do ip link set "$name" master lower && ip link set "$name" up || return 1; done
		ip link set lower up
		;;
	macvlan) ip link set eth0 up && ip link add link eth0 name upper type macvlan mode bridge ;;
	vxlan)
		ip address add "10.98.0.$id/24" dev eth0 && ip link set eth0 up &&
			ip link add upper type vxlan id 9 dstport 4789 dev eth0 local "10.98.0.$id" remote "10.98.0.$other"
		;;
	ipip)
		ip address add "10.98.0.$id/24" dev eth0 && ip link set eth0 up &&
			ip link add upper type ipip local "10.98.0.$id" remote "10.98.0.$other"
		;;
	tun)
		# Nothing in a machine loads the module for who opens its device.
		modprobe tun && ip address add "10.98.0.$id/24" dev eth0 && ip link set eth0 up || return 1
		setsid socat TUN,tun-name=upper,tun-type=tun,iff-no-pi "UDP4-DATAGRAM:10.98.0.$other:4000,bind=10.98.0.$id:4000" \
			> /tmp/socat.log 2>&1 &
		echo $! > /run/socat.pid
		tries=0
		while ! [ -e /sys/class/net/upper ] && [ $tries -lt 100 ]; do usleep 100000; tries=$((tries + 1)); done
		ip link set upper mtu 1400 || { cat /tmp/socat.log; return 1; }
		;;
	wireguard)
		key "$id" > /run/key
		ip address add "10.98.0.$id/24" dev eth0 && ip link set eth0 up && ip link add upper type wireguard &&
			wg set upper listen-port 51820 private-key /run/key peer "$(key "$other" | wg pubkey)" \
				allowed-ips "10.97.0.$other/32" endpoint "10.98.0.$other:51820"
		;;
	esac || return 1
	ip link set "$device" up && ip address add "10.97.0.$id/24" dev "$device" || return 1
	echo "$device" > /run/device
	# The link carries, and the other machine answers, before a net is added.
	tries=0
	while [ "$(cat "/sys/class/net/$device/carrier" 2> /dev/null)" != 1 ] && [ $tries -lt 100 ]; do
		usleep 100000
		tries=$((tries + 1))
	done
	[ "$(cat "/sys/class/net/$device/carrier")" = 1 ] || { echo "no carrier on $1"; return 1; }
}

# The private key of a machine: 32 times the digit of its number.
key() {
	head -c 32 /dev/zero | tr '\0' "$1" | base64
}

harm() {
	tc qdisc replace dev eth0 root netem "$@"
}

harmed() {
	tc -s qdisc show dev eth0
}

stop() {
	pid=$(cat /run/lnetd.pid 2> /dev/null) || return 0
	rm -f /run/lnetd.pid
	kill "$pid" 2> /dev/null
	tries=0
	while kill -0 "$pid" 2> /dev/null && [ $tries -lt 200 ]; do usleep 100000; tries=$((tries + 1)); done
	! kill -0 "$pid" 2> /dev/null || { kill -9 "$pid"; echo "lnetd does not end within 20 s"; return 1; }
}

start() {
	RUST_BACKTRACE=1 setsid lnetd --shards "$1" > /tmp/lnetd.log 2>&1 &
	pid=$!
	echo $pid > /run/lnetd.pid
	tries=0
	while kill -0 $pid 2> /dev/null && [ $tries -lt 100 ]; do
		! lnetctl lnet configure > /tmp/out 2>&1 || return 0
		usleep 200000
		tries=$((tries + 1))
	done
	cat /tmp/out
	tail -n 5 /tmp/lnetd.log
	return 1
}

add() {
	set -- --net "$1" --if "$(cat /run/device)" ${2:+--mode "$2"} ${3:+--port "$3"}
	lnetctl net add "$@"
}

ping() {
	tries=1
	began=$(date +%s)
	while ! lnetctl ping "$1" > /tmp/out 2>&1; do
		[ $(($(date +%s) - began)) -lt 40 ] || { cat /tmp/out; return 1; }
		tries=$((tries + 1))
		sleep 1
	done
	[ $tries = 1 ] || echo "try $tries"
}

load() {
	lnetctl --json load start initiator --to "$1" --messages "$2" --window 16 --timeout-ms 100000 > /tmp/out 2>&1 ||
		{ cat /tmp/out; return 1; }
	number=$(grep -oE '[0-9]+' /tmp/out | tail -n 1)
	lnetctl load wait "$number" > /tmp/out 2>&1
	status=$?
	cat /tmp/out
	return $status
}

# Each slave is away for 3 seconds, on both machines at once, as if its cable were pulled.
cuts() {
	for name in eth0 eth1; do
		sleep 2
		ip link set "$name" down || return 1
		sleep 3
		ip link set "$name" up || return 1
		sleep 2
	done
}

# What a driver has no word for ("Operation not supported") is left out, and told.
change() {
	"$@" > /tmp/change 2>&1 || { echo "$*: $(cat /tmp/change)"; grep -q 'not supported' /tmp/change || return 1; }
	sleep 4
}

changes() {
	sleep 2
	rings=$(ethtool -g eth0 2> /dev/null | grep '^RX:' | tail -n 1 | tr -cd 0-9)
	if [ -n "$rings" ] && [ "$rings" -gt 64 ]; then
		change ethtool -G eth0 rx $((rings / 2)) && change ethtool -G eth0 rx "$rings" || return 1
	fi
	queues=$(ethtool -l eth0 2> /dev/null | grep '^Combined:' | tail -n 1 | tr -cd 0-9)
	if [ -n "$queues" ] && [ "$queues" -gt 1 ]; then
		# Queues with sockets of rings are not given up: the kernel may refuse fewer.
		ethtool -L eth0 combined 1 2>&1 && sleep 4 && { change ethtool -L eth0 combined "$queues" || return 1; }
	fi
	change ip link set eth0 mtu 1400 && change ip link set eth0 mtu 1500 || return 1
	change ip link set eth0 down && change ip link set eth0 up
}

loads() {
	step=$1
	shift
	$step > /tmp/step 2>&1 &
	steps=$!
	count=0
	while kill -0 $steps 2> /dev/null || [ $count = 0 ]; do
		load "$@" || { cat /tmp/step; return 1; }
		count=$((count + 1))
	done
	wait $steps || { cat /tmp/step; return 1; }
}

renewed() {
	sleep 2
	lnetctl net del --net xdp && add xdp
}

killed() {
	sleep 2
	kill -9 "$(cat /run/lnetd.pid)"
	sleep 1
	start "$(nproc)" && add xdp && lnetctl load start target
}

serve() {
	setsid request_reply eth0 "10.97.0.$id@xdp" > /tmp/serve.log 2>&1 &
	echo $! > /run/serve.pid
	sleep 8
	kill -0 "$(cat /run/serve.pid)" || { cat /tmp/serve.log; return 1; }
}

ask() {
	request_reply eth0 "10.97.0.$id@xdp" "10.97.0.$other@xdp"
}

served() {
	echo "zc: $(ss --xdp -e -i | grep -oE 'zc:[01]' | sort | uniq -c | tr -s ' \n' ' ')"
	kill "$(cat /run/serve.pid)"
	sleep 2
	! [ -s /tmp/serve.log ] || { cat /tmp/serve.log; return 1; }
}

vlan() {
	ip link add link eth0 name other type vlan id 7 && ip link set other up && cat /sys/class/net/eth0/address
}

strangers() {
	ip address add "10.99.0.$id/24" dev other && ip route add "10.97.0.$other/32" dev other metric 500 || return 1
	ip neighbour replace "10.97.0.$other" lladdr "$1" dev other nud permanent || return 1
	count=0
	while [ $count -lt "$2" ]; do
		echo 0123456789012345678901234567890123456789012345678901234567890123456789 |
			socat - "UDP4-DATAGRAM:10.97.0.$other:988,so-bindtodevice=other" || return 1
		count=$((count + 1))
	done
	ip link del other
}

frames() {
	lnetctl --json frames show
}

queues() {
	# The node looks once in 3 s.
	sleep 4
	lnetctl net show --net xdp -v | sed -n '/frames by queue:/,/tunables:/p' | grep -E '^ *[0-9]+: '
}

state() {
	lnetctl net show -v 1 | grep -E 'active mode|no rings|idle queues|reason|zero copy|status: down' | sed 's/^[ -]*//'
	echo "zc: $(ss --xdp -e -i 2> /dev/null | grep -oE 'zc:[01]' | sort | uniq -c | tr -s ' \n' ' ')"
	lnetctl frames check > /tmp/out 2>&1 || { echo "frames: $(tr -s ' \n' ' ' < /tmp/out)"; }
	driver=$(readlink /sys/class/net/eth0/device/driver)
	echo "driver: ${driver##*/}"
	echo "queues: $(ls /sys/class/net/eth0/queues | grep -c rx)"
	grep -E ' WARN | ERROR |panicked' /tmp/lnetd.log | tail -n 3 | sed 's/^/log: /'
}

step=$1
shift
case $step in
target) lnetctl load start target ;;
*) $step "$@" ;;
esac
