# An upgrade leaves running what runs.
if [ "$1" = 0 ] && [ -d /run/systemd/system ]; then
    systemctl disable --now marline-client.service marline-serve.service marline-server.service marline-up.service \
        marline-lockdown.service || true
    # Without the program nobody could remove a kill switch.
    marline down > /dev/null || true
fi
