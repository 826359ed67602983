#!/bin/sh
# Installs or upgrades Teralog as a service of systemd:
#
#   go build -o teralog . && sudo deploy/install.sh ./teralog
#
# It downloads nothing, starts nothing, and can be run again. A configuration
# that is there is kept. With DESTDIR=DIR it only lays the files out below DIR.
set -eu

usage="usage: deploy/install.sh BINARY"
binary=${1:?$usage}
from=$(cd "$(dirname "$0")" && pwd)
root=${DESTDIR:-}
config=$root/etc/teralog/teralog.conf

fail() {
	echo "install.sh: $1" >&2
	exit 1
}

[ $# -eq 1 ] || fail "$usage"
[ -f "$binary" ] && [ -x "$binary" ] || fail "$binary is not a program"
"$binary" version || fail "$binary does not run on this machine"
[ -n "$root" ] || [ "$(id -u)" -eq 0 ] || fail "only root can install a service; DESTDIR=DIR lays the files out below DIR"

# A user of its own, who cannot log in and owns nothing but the data.
if [ -z "$root" ] && ! getent passwd teralog >/dev/null; then
	useradd --system --user-group --home-dir /var/lib/teralog --no-create-home --shell /usr/sbin/nologin teralog
fi

install -d -m 0755 "$root/usr/local/bin" "$root/etc/teralog" "$root/etc/systemd/system" "$root/etc/sysctl.d"

# The configuration, for the broker to read and for root to change. A new binary
# must like it before it takes the old one's place.
[ -e "$config" ] || install -m 0640 "$from/teralog.conf" "$config"
[ -n "$root" ] || chgrp teralog "$config"
"$binary" config check "$config" >/dev/null

# The binary, by a rename: a broker that runs keeps its old one.
install -m 0755 "$binary" "$root/usr/local/bin/teralog.new"
mv "$root/usr/local/bin/teralog.new" "$root/usr/local/bin/teralog"

# The unit and the kernel's settings. Changes of your own belong into a drop-in
# (systemctl edit teralog) and a file of your own.
install -m 0644 "$from/systemd/teralog.service" "$root/etc/systemd/system/teralog.service"
install -m 0644 "$from/systemd/sysctl.conf" "$root/etc/sysctl.d/90-teralog.conf"

if [ -z "$root" ]; then
	install -d -m 0700 -o teralog -g teralog /var/lib/teralog
	sysctl -q -p /etc/sysctl.d/90-teralog.conf || echo "install.sh: not every kernel setting was taken; a broker works without them" >&2
	systemctl daemon-reload
fi

cat <<END
Installed. Next:
  edit $config, then   teralog config check $config
  start it:   systemctl enable --now teralog     after an upgrade: systemctl restart teralog
  watch it:   systemctl status teralog; journalctl -u teralog
END
