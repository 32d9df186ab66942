//! Test of the limit on connections for a whole machine, where programs have no proxy that could report the reason.

use super::{Program, WORLD, World, support};

/// Two connections that are served, a third one at the same time, and another one after the first has ended.
const CONNECTIONS: &str = "python3 -c '
import socket, time
def served(end):
    end.send(b\"hello\")
    return end.recv(16) == b\"hello\"
def connect():
    end = socket.create_connection((\"203.0.113.7\", 7007), timeout=20)
    if not served(end):
        raise ConnectionResetError
    return end
first, second = connect(), connect()
began = time.monotonic()
try:
    connect()
    print(\"a third one is served\")
except TimeoutError:
    print(\"no answer\")
except OSError:
    print(\"refused\" if time.monotonic() - began < 15 else \"refused late\")
print(\"still served\" if served(first) else \"not served\")
second.close()
while True:
    try:
        third = connect()
        break
    except OSError:
        time.sleep(0.1)
print(\"a place is free\")
'";

#[test]
fn at_the_limit_of_a_whole_machine_a_program_is_refused_and_the_log_says_so_once() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().expect("a folder");
    let Some(testbed) = World::set(dir.path(), WORLD, "9.9.9.1", "9.9.9.1") else { return };
    let world = World::join(testbed, Program::Up, "auto --max-connections 2");
    let said = world.testbed.run("client", CONNECTIONS);
    assert_eq!(said, "refused\nstill served\na place is free\n");
    let log = world.testbed.log(world.client);
    assert_eq!(log.matches("connection limit reached").count(), 1, "{log}");
}
