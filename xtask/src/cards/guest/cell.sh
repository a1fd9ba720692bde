#!/bin/sh
# Steps of a cell in a machine. The log of the daemon is /tmp/lnetd.log.
#   device NAME MTU    gives /run/device: eth0 itself, or a device upon it, with the address 10.97.0.N
#   few                gives eth0 one queue
#   beside             gives a veth, upper, in a bridge with eth1, with the address 10.97.1.N
#   long               has loads be of long messages
#   start SHARDS       starts the daemon and configures the node
#   harm WORDS         has netem do so to what eth0 sends
#   harmed             tells what netem has sent
#   add NET OPTIONS    adds the net on /run/device
#   ping NID           again, for 40 seconds; tells how often
#   target             the load's far end
#   load NID MESSAGES  the load, verified at both ends
#   loads STEP NID MESSAGES  loads, one after the other, until that step is over
#   pulled             tells how often the links of NICs have lost their carriers
#   changes            changes what the kernel lets one change of eth0, and back; tells what it refused
#   grow               gives eth0 as many queues as it can have
#   by_rings           has long messages leave by rings
#   beside_rings       tells what takes long messages, and the frames that have left by the socket
#   renewed, killed    deletes and adds the net; kills the daemon, and starts another one
#   serve, ask, served a service with a node of its own; three requests with bulk data to it; its end. Both ends
#                      tell the sockets of their rings
#   vlan               makes a VLAN device on eth0, tells the Ethernet address
#   strangers MAC N    sends so many frames by it that look like the other machine's but for their tag
#   frames             frames of the XDP program
#   queues NET         frames by receive queue, as the node has counted them in the end
#   state              `key: value` lines of what came of it
#   stop               ends the daemon
id=$(cat /run/id)
other=$((3 - id))

# The queues of eth0: those that it has, or, with `head`, those that it can have.
channels() {
	ethtool -l eth0 2> /dev/null | grep '^Combined:' | ${1:-tail} -n 1 | tr -cd 0-9
}

device() {
	! [ -e /run/socat.pid ] || { kill "$(cat /run/socat.pid)" && rm /run/socat.pid; }
	! [ -e /run/teamd/upper.pid ] || teamd -k -t upper
	rm -f /run/scheme
	tc qdisc del dev eth0 root 2> /dev/null
	# Another cell may have given it other queues than it had.
	[ -e /run/channels ] || channels > /run/channels
	[ "$(channels)" = "$(cat /run/channels)" ] || ethtool -L eth0 combined "$(cat /run/channels)" || return 1
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
		mkdir -p /run/teamd
		teamd -d -t upper -c '{"runner": {"name": "activebackup"}, "link_watch": {"name": "ethtool"}, "ports": {"eth0": {}, "eth1": {}}}'
		;;
	veth) behind eth0 ;;
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

# A veth, upper, whose other end is in a bridge with a NIC.
behind() {
	ip link add upper type veth peer name inner && ip link add lower type bridge stp_state 0 forward_delay 0 || return 1
	for name in "$1" inner; do ip link set "$name" master lower && ip link set "$name" up || return 1; done
	ip link set lower up
}

beside() {
	behind eth1 && ip link set upper up && ip address add "10.97.1.$id/24" dev upper
}

few() {
	ethtool -L eth0 combined 1 && sleep 4 && [ "$(channels)" = 1 ]
}

# Three of four are longer than one frame, and one has 1 MiB.
long() {
	echo '{"sizes": [{"min_bytes": 16384, "max_bytes": 65536, "weight": 3}, {"min_bytes": 1048576, "max_bytes": 1048576, "weight": 1}]}' \
		> /run/scheme
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
	net=$1
	shift
	lnetctl net add --net "$net" --if "$(cat /run/device)" "$@"
}

ping() {
	tries=1
	began=$(date +%s)
	while ! lnetctl ping "$1" > /tmp/out 2>&1; do
		[ $(($(date +%s) - began)) -lt 40 ] || { cat /tmp/out; return 1; }
		tries=$((tries + 1))
		sleep 1
	done
	[ $tries = 1 ] || echo "ping: try $tries of VM $id"
}

# An option for loads of other messages than a load has by itself.
scheme() {
	! [ -e /run/scheme ] || echo --scheme /run/scheme
}

# Messages at a time: fewer long ones, since a machine may be slow.
window() {
	[ -e /run/scheme ] && echo --window 4 || echo --window 16
}

target() {
	lnetctl load start target $(scheme)
}

load() {
	lnetctl --json load start initiator --to "$1" --messages "$2" $(window) --timeout-ms 100000 $(scheme) > /tmp/out 2>&1 ||
		{ cat /tmp/out; return 1; }
	number=$(grep -oE '[0-9]+' /tmp/out | tail -n 1)
	lnetctl load wait "$number" > /tmp/out 2>&1
	status=$?
	cat /tmp/out
	return $status
}

pulled() {
	for name in eth0 eth1; do cat /sys/class/net/$name/carrier_down_count; done
}

# A change by a command. One that the kernel refuses is told, and no fault where its reason has the words.
change() {
	words=$1
	shift
	"$@" > /tmp/change 2>&1 || {
		echo "refused: \`$*\`: $(tr -s ' \t\n' ' ' < /tmp/change)"
		grep -q "$words" /tmp/change || return 1
	}
	sleep 4
}

changes() {
	sleep 2
	# Some drivers have no word for a change.
	unknown='not supported'
	rings=$(ethtool -g eth0 2> /dev/null | grep '^RX:' | tail -n 1 | tr -cd 0-9)
	if [ -n "$rings" ] && [ "$rings" -gt 64 ]; then
		change "$unknown" ethtool -G eth0 rx $((rings / 2)) && change "$unknown" ethtool -G eth0 rx "$rings" || return 1
	fi
	queues=$(channels)
	if [ -n "$queues" ] && [ "$queues" -gt 1 ]; then
		# Queues with sockets of rings are not given up: the kernel may refuse fewer.
		change . ethtool -L eth0 combined 1
		[ "$(channels)" = "$queues" ] || change "$unknown" ethtool -L eth0 combined "$queues" || return 1
	fi
	change "$unknown" ip link set eth0 mtu 1400 && change "$unknown" ip link set eth0 mtu 1500 || return 1
	change "$unknown" ip link set eth0 down && change "$unknown" ip link set eth0 up
}

# The node looks once in 3 s, and the link is away for as long.
grow() {
	sleep 2
	most=$(channels head)
	[ "$most" -gt 1 ] && ethtool -L eth0 combined "$most" && sleep 10 && [ "$(channels)" = "$most" ]
}

by_rings() {
	lnetctl net set --all --carrier rings
}

beside_rings() {
	lnetctl net show -v 1 | grep 'active carrier:' || return 1
	# Where there were none, there is no line.
	lnetctl frames show | grep 'frames beside rings:' || echo 'frames beside rings: 0'
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
	start "$(nproc)" && add xdp && target
}

serve() {
	setsid request_reply eth0 "10.97.0.$id@xdp" > /tmp/serve.log 2>&1 &
	echo $! > /run/serve.pid
	sleep 8
	kill -0 "$(cat /run/serve.pid)" || { cat /tmp/serve.log; return 1; }
}

# Looks at the sockets while the requests are under way.
ask() {
	: > /tmp/sockets
	request_reply eth0 "10.97.0.$id@xdp" "10.97.0.$other@xdp" > /tmp/ask.log 2>&1 &
	asking=$!
	while kill -0 $asking 2> /dev/null; do
		sockets > /tmp/now
		! [ -s /tmp/now ] || mv /tmp/now /tmp/sockets
		sleep 1
	done
	wait $asking
	status=$?
	cat /tmp/ask.log /tmp/sockets
	return $status
}

served() {
	sockets
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
	lnetctl net show --net "$1" -v | sed -n '/frames by queue:/,/tunables:/p' | grep -E '^ *[0-9]+: '
}

# The sockets of rings, one a line: the interface, its queue, 1 for zero copy.
sockets() {
	ss -H -O --xdp -e -i 2> /dev/null | sed -nE 's/.* ([a-z0-9]+):q([0-9]+) .*zc:([01]).*/socket: \1 \2 \3/p'
}

state() {
	lnetctl net show -v 1 | grep -E 'active mode|no rings|idle queues|reason|zero copy|status: down' | sed 's/^[ -]*//'
	sockets
	lnetctl frames check > /tmp/out 2>&1 || { echo "frames: $(tr -s ' \n' ' ' < /tmp/out)"; }
	driver=$(readlink /sys/class/net/eth0/device/driver)
	echo "driver: ${driver##*/}"
	echo "queues: $(ls /sys/class/net/eth0/queues | grep -c rx)"
	grep -E ' WARN | ERROR |panicked' /tmp/lnetd.log | tail -n 3 | sed 's/^/log: /'
}

step=$1
shift
$step "$@"
