if [ -d /run/systemd/system ]; then
    # The units are known from now on. Nothing is started: without an invite, or a key, nothing could be.
    systemctl daemon-reload || true
fi
