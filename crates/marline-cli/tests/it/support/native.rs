//! Test support for the native carrier: hosts and services.

use std::path::Path;

use marline_testkit::need;

use super::testbed::{Testbed, Until};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/native_world.sh");

/// Returns the testbed, if this machine supports it.
pub(crate) fn testbed(dir: &Path, programs: &[&str]) -> Option<Testbed> {
    if !Path::new("/proc/sys/net/mptcp/enabled").exists() {
        need::skip("this kernel has no MPTCP");
        return None;
    }
    Testbed::of_marline(dir, SCRIPT, &[&["ss", "nstat", "mptcpize"], programs].concat())
}

const NGINX: &str = "
daemon off;
pid nginx.pid;
error_log stderr;
worker_processes 1;
events {}
http {
    access_log off;
    client_body_temp_path tmp; proxy_temp_path tmp; fastcgi_temp_path tmp; uwsgi_temp_path tmp;
    scgi_temp_path tmp;
    server {
        listen LISTEN;
        root web;
        add_header X-Client \"$proxy_protocol_addr|$remote_addr\";
        add_header X-Connection $connection;
        limit_rate $arg_rate;
    }
}
";

/// Size of the file `large` of [`start_nginx`], in bytes.
pub(crate) const LARGE: u64 = 32_000_000;

/// A web server with some files without repetitions, whose sums are in `web/sums`. `FILE?rate=8m` is sent at 8 MiB
/// per second. A limit at the reader would have no effect, since sockets on loopback hold megabytes.
pub(crate) fn start_nginx(testbed: &mut Testbed, wrapper: &str, listen: &str, port: u16) {
    let home = testbed.dir.join("server");
    std::fs::create_dir_all(home.join("tmp")).unwrap();
    std::fs::write(home.join("nginx.conf"), NGINX.replace("LISTEN", listen)).unwrap();
    let files = format!(
        "mkdir -p web && chmod -R a+rwX . && cd web
        test -e sums && exit
        for n in {{1..50}}; do head -c 400000 /dev/urandom > f$n; done
        head -c {LARGE} /dev/urandom > large
        sha256sum f* large > sums"
    );
    testbed.run("server", &files);
    testbed.start("server", &format!("{wrapper} nginx -p . -c nginx.conf"), Until::Listens(port));
}

/// Starts sshd in a testbed with two homes. The client's home contains the files for `ssh -F ssh_config`.
pub(crate) fn start_sshd(testbed: &mut Testbed, address: &str, port: u16, wrapper: &str) {
    let client = testbed.dir.join("client");
    let key = client.join("key");
    let home = testbed.dir.join("server");
    let config = format!(
        "HostKey {home}/host_key\nAuthorizedKeysFile {home}/authorized_keys\n\
         PermitRootLogin prohibit-password\nPasswordAuthentication no\nStrictModes no\nUsePAM no\n\
         PidFile none\nForceCommand cd {home} && eval \"$SSH_ORIGINAL_COMMAND\"\n",
        home = home.display()
    );
    std::fs::write(home.join("sshd_config"), config).unwrap();
    let client_config = format!(
        "Host *\nUser root\nIdentityFile {key}\nIdentitiesOnly yes\nBatchMode yes\n\
         UserKnownHostsFile {home}/known_hosts\nHostKeyAlias test\n",
        key = key.display(),
        home = client.display()
    );
    std::fs::write(client.join("ssh_config"), client_config).unwrap();
    let make = format!(
        "mkdir -p /run/sshd
        ssh-keygen -q -t ed25519 -N '' -f host_key
        ssh-keygen -q -t ed25519 -N '' -f {key}
        cp {key}.pub authorized_keys
        echo \"test $(cut -d ' ' -f 1,2 host_key.pub)\" > {client}/known_hosts",
        key = key.display(),
        client = client.display()
    );
    testbed.run("server", &make);
    let sshd = format!(
        "{wrapper} $(command -v sshd) -D -e -f {}/sshd_config -o ListenAddress={address} -p {port}",
        home.display()
    );
    testbed.start("server", &sshd, Until::Listens(port));
}
