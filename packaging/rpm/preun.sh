# An upgrade leaves running what runs.
if [ "$1" = 0 ] && [ -d /run/systemd/system ]; then
    systemctl disable --now marline-client.service marline-serve.service marline-server.service marline-up.service || true
fi
