//! A client and a server as network namespaces, with WiFi and LTE between them, and the processes in them.
//!
//! Dropping the value ends its processes and removes the namespaces.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

/// Address of the systems' servers.
pub const SERVER: &str = "9.9.9.1";
/// Address of the neutral server, the target.
pub const TARGET: &str = "8.8.4.1";
/// WiFi's interface and client address.
pub const WIFI: (&str, &str) = ("wlan0", "10.1.0.2");
/// LTE's interface and client address.
pub const LTE: (&str, &str) = ("wwan0", "10.2.0.2");

/// The links of a world.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Links {
    /// Loss on both links in each direction in percent, instead of 0.5 % on WiFi only.
    pub loss: Option<f64>,
    /// True for ten times the rates and no loss, to measure the cost per byte.
    pub fast: bool,
}

impl Links {
    fn wifi(self) -> String {
        let loss = self.loss.unwrap_or(if self.fast { 0.0 } else { 0.5 });
        let (down, up) = if self.fast { (300, 150) } else { (30, 15) };
        format!("down.rate={down}M,up.rate={up}M,delay=8ms,loss={loss}%")
    }

    fn lte(self) -> String {
        let loss = self.loss.unwrap_or(0.0);
        let (down, up) = if self.fast { (150, 60) } else { (15, 6) };
        format!("down.rate={down}M,up.rate={up}M,delay=30ms,loss={loss}%")
    }
}

/// One end of the world.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Side {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// A process in a world.
pub struct Process {
    /// The process.
    pub child: Child,
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running world.
pub struct World {
    /// Directory of its files: logs, keys, sockets.
    pub dir: PathBuf,
    name: String,
    link: Option<Process>,
    /// The system's processes.
    pub system: Vec<Process>,
    /// The neutral server.
    pub neutral: Vec<Process>,
}

impl World {
    /// Creates the namespaces and the links; logs go to `dir`.
    ///
    /// # Errors
    /// Root privileges or a tool are missing.
    pub fn create(lab: &Path, links: Links, dir: &Path, seed: u64) -> anyhow::Result<World> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("rv{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let dir = dir.join(&name);
        std::fs::create_dir_all(&dir)?;
        let mut world = World { dir, name, link: None, system: Vec::new(), neutral: Vec::new() };
        for side in [Side::Client, Side::Server] {
            ip(&format!("netns add {}", world.namespace(side)))?;
        }
        let mut link = Command::new(lab);
        let path = |(name, client): (&str, &str), items: String| {
            format!("{name},{client}/24,{}1/24,{items}", client.trim_end_matches('2'))
        };
        link.args([
            "link",
            "--between",
            &world.namespace(Side::Client),
            &world.namespace(Side::Server),
        ])
        .args(["--path", &path(WIFI, links.wifi()), "--path", &path(LTE, links.lte())])
        .arg("--control")
        .arg(world.control())
        .args(["--seed", &seed.to_string()]);
        world.link = Some(world.spawn_command(link, "link")?);
        world.await_true("the links", |world| world.control().exists())?;
        world.configure()?;
        Ok(world)
    }

    /// Name of a side's namespace.
    pub fn namespace(&self, side: Side) -> String {
        let side = if side == Side::Client { "c" } else { "s" };
        format!("{}{side}", self.name)
    }

    fn control(&self) -> PathBuf {
        self.dir.join("link.sock")
    }

    fn configure(&self) -> anyhow::Result<()> {
        let [client, server] = [Side::Client, Side::Server].map(|side| self.namespace(side));
        for namespace in [&client, &server] {
            ip(&format!("-n {namespace} link set lo up"))?;
            for item in ["all", "default", WIFI.0, LTE.0] {
                let filter = format!("net.ipv4.conf.{item}.rp_filter=0");
                run(
                    Command::new("ip").args(["netns", "exec", namespace, "sysctl", "-qw", &filter])
                )?;
            }
        }
        for address in [SERVER, TARGET] {
            ip(&format!("-n {server} address add {address}/32 dev lo"))?;
        }
        for (table, (interface, address)) in [(101, WIFI), (102, LTE)] {
            ip(&format!("-n {client} rule add from {address} lookup {table}"))?;
            ip(&format!("-n {client} route add default dev {interface} table {table}"))?;
        }
        ip(&format!("-n {client} route add default dev {} metric 100", WIFI.0))?;
        ip(&format!("-n {client} route add default dev {} metric 200", LTE.0))
    }

    /// Silences WiFi without a signal, or restores it.
    ///
    /// # Errors
    /// The link has ended.
    pub fn set_wifi_silent(&self, dead: bool) -> anyhow::Result<()> {
        let mut control = UnixStream::connect(self.control())?;
        let verb = if dead { "down" } else { "up" };
        writeln!(control, "{verb} {}", WIFI.0)?;
        let mut answer = String::new();
        BufReader::new(control).read_line(&mut answer)?;
        ensure!(!answer.contains("error"), "link: {answer}");
        Ok(())
    }

    /// Takes WiFi's interface down, or brings it up with its routes, as a network manager does.
    ///
    /// # Errors
    /// The interface does not exist.
    pub fn set_wifi_up(&self, dead: bool) -> anyhow::Result<()> {
        let (client, (interface, _)) = (self.namespace(Side::Client), WIFI);
        if dead {
            return ip(&format!("-n {client} link set {interface} down"));
        }
        ip(&format!("-n {client} link set {interface} up"))?;
        ip(&format!("-n {client} route replace default dev {interface} table 101"))?;
        ip(&format!("-n {client} route replace default dev {interface} metric 100"))
    }

    /// Starts a program in a namespace; its output goes to a log.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(&mut self, side: Side, name: &str, program: &[&str]) -> anyhow::Result<()> {
        let process = self.spawn(side, name, program)?;
        self.system.push(process);
        Ok(())
    }

    /// Like [`World::start`], but the process does not count as part of the system.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn spawn(&self, side: Side, name: &str, program: &[&str]) -> anyhow::Result<Process> {
        self.spawn_command(self.command(side, program), name)
    }

    /// A command in a namespace.
    pub fn command(&self, side: Side, program: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(side)]).args(program).current_dir(&self.dir);
        command
    }

    fn spawn_command(&self, mut command: Command, name: &str) -> anyhow::Result<Process> {
        let log = File::create(self.log(name))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("{command:?}"))?;
        Ok(Process { child })
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.log"))
    }

    /// A process's output so far.
    pub fn printed(&self, name: &str) -> String {
        std::fs::read_to_string(self.log(name)).unwrap_or_default()
    }

    /// Runs a program in a namespace to its end.
    ///
    /// # Errors
    /// The program fails.
    pub fn run(&self, side: Side, program: &[&str]) -> anyhow::Result<String> {
        run(&mut self.command(side, program))
    }

    /// Waits until a process has printed a text.
    ///
    /// # Errors
    /// The text was not printed within 15 s.
    pub fn await_printed(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let waited = self.await_true(&format!("{name} did not print `{text}`"), |world| {
            world.printed(name).contains(text)
        });
        waited.with_context(|| self.printed(name))
    }

    /// Waits until a condition is true.
    ///
    /// # Errors
    /// It was not true within 15 s.
    pub fn await_true(&self, what: &str, is_true: impl Fn(&World) -> bool) -> anyhow::Result<()> {
        let start = Instant::now();
        while !is_true(self) {
            ensure!(start.elapsed() < Duration::from_secs(15), "timeout while waiting for {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Bytes transferred over a client interface so far, in both directions.
    ///
    /// # Errors
    /// The interface does not exist.
    pub fn interface_bytes(&self, interface: &str) -> anyhow::Result<u64> {
        let table = self.run(Side::Client, &["cat", "/proc/net/dev"])?;
        let line =
            table.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
        let numbers: Vec<u64> = line
            .context("cannot find the interface in /proc/net/dev")?
            .split_whitespace()
            .flat_map(str::parse)
            .collect();
        Ok(numbers.first().unwrap_or(&0) + numbers.get(8).unwrap_or(&0))
    }

    /// Ends the links, and returns the reason why their timing is unreliable, if there is one.
    pub fn doubt(&mut self) -> Option<String> {
        let mut control = UnixStream::connect(self.control()).ok()?;
        writeln!(control, "quit").ok()?;
        let mut link = self.link.take()?;
        for _ in 0..100 {
            if link.child.try_wait().ok()?.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let printed = self.printed("link");
        printed.lines().find(|line| line.contains("WARNING")).map(str::to_owned)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.system.clear();
        self.neutral.clear();
        self.link = None;
        for side in [Side::Client, Side::Server] {
            // A removed namespace is not an error.
            let _ = ip(&format!("netns delete {}", self.namespace(side)));
        }
    }
}

fn ip(arguments: &str) -> anyhow::Result<()> {
    run(Command::new("ip").args(arguments.split(' '))).map(drop)
}

fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
