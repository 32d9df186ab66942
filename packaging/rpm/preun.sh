# An upgrade does not stop running services.
if [ "$1" = 0 ] && [ -d /run/systemd/system ]; then
    systemctl disable --now marline-client.service marline-serve.service marline-server.service marline-up.service \
        marline-lockdown.service || true
    # Without the program, a kill switch could not be removed.
    marline down > /dev/null || true
fi
