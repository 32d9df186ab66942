//! A web page: 71 objects on 12 hosts, one connection per host, where later objects become known only when earlier
//! ones have arrived. Sizes are those of the median desktop page of HTTP Archive in October 2024 (Web Almanac 2024):
//! 18 kB of HTML, 78 kB of style sheets, 613 kB of scripts, 131 kB of fonts, 1,054 kB of images. Event: `loaded START
//! END`.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Mutex, mpsc};

use super::event;
use crate::clock;
use crate::dial::{Dial, Stream};
use crate::protocol::{PAGE, REQUEST};

/// Object types: number of objects, mean size in bytes, and the type that refers to them.
const TYPES: [(usize, u32, usize); 6] = [
    (2, 9_000, 0),
    (8, 9_750, 0),
    (24, 25_540, 0),
    (4, 32_750, 1),
    (18, 58_560, 0),
    (15, 1_000, 2),
];
const HOSTS: usize = 12;

/// An object: host, size in bytes, and the object whose arrival makes it known.
struct Object {
    host: usize,
    bytes: u32,
    found_in: usize,
}

fn objects() -> Vec<Object> {
    let mut objects = Vec::new();
    let mut first_of = Vec::new();
    for (kind, (count, bytes, found_in)) in TYPES.into_iter().enumerate() {
        first_of.push(objects.len());
        for number in 0..count {
            // Sizes within a type range from a quarter to seven quarters of their mean.
            let share = 1 + 6 * number / (count - 1).max(1);
            let found_in = match found_in {
                0 => 0,
                other => first_of[other] + number % TYPES[other].0,
            };
            // Half of all objects, including the style sheets, are on the page's own host.
            let host = if kind == 1 || number % 2 == 0 {
                0
            } else {
                1 + (number / 2 + kind) % (HOSTS - 1)
            };
            objects.push(Object { host, bytes: bytes * share as u32 / 4, found_in });
        }
    }
    objects
}

/// Loads the page this many times in sequence, each time over new connections.
pub async fn load(dial: &Dial, times: u64) -> anyhow::Result<()> {
    for _ in 0..times {
        event("start", &[clock::now()]);
        let start = clock::now();
        load_once(dial).await?;
        event("loaded", &[start, clock::now()]);
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    }
    Ok(())
}

async fn load_once(dial: &Dial) -> anyhow::Result<()> {
    let objects = Arc::new(objects());
    let (arrivals, mut arrived) = mpsc::unbounded_channel();
    let mut hosts: Vec<Option<mpsc::UnboundedSender<usize>>> = (0..HOSTS).map(|_| None).collect();
    let mut tasks = tokio::task::JoinSet::new();
    let mut request = |number: usize, tasks: &mut tokio::task::JoinSet<anyhow::Result<()>>| {
        let host = objects[number].host;
        let queue = hosts[host].get_or_insert_with(|| {
            let (queue, requests) = mpsc::unbounded_channel();
            tasks.spawn(fetch(dial.clone(), objects.clone(), requests, arrivals.clone()));
            queue
        });
        // The task of a failed host reports the failure.
        let _ = queue.send(number);
    };
    request(0, &mut tasks);
    let mut missing = objects.len();
    while missing > 0 {
        tokio::select! {
            Some(number) = arrived.recv() => {
                missing -= 1;
                let found = objects.iter().enumerate().skip(1).filter(|(_, object)| object.found_in == number);
                for (other, _) in found.filter(|(other, _)| *other != number) {
                    request(other, &mut tasks);
                }
            }
            Some(ended) = tasks.join_next() => ended??,
        }
    }
    Ok(())
}

/// Fetches the objects of one host: requests are sent immediately, and answers arrive in order.
async fn fetch(
    dial: Dial,
    objects: Arc<Vec<Object>>,
    mut requests: mpsc::UnboundedReceiver<usize>,
    arrivals: mpsc::UnboundedSender<usize>,
) -> anyhow::Result<()> {
    let mut stream: Stream = dial.stream().await?;
    stream.write_u8(PAGE).await?;
    let (mut from, to) = tokio::io::split(stream);
    let to = Mutex::new(to);
    let (asked, mut expected) = mpsc::unbounded_channel();
    let writer = async {
        while let Some(number) = requests.recv().await {
            let mut request = [0; REQUEST];
            request[..4].copy_from_slice(&objects[number].bytes.to_be_bytes());
            let mut to = to.lock().await;
            to.write_all(&request).await?;
            to.flush().await?;
            asked.send(number)?;
        }
        std::future::pending().await
    };
    let reader = async {
        while let Some(number) = expected.recv().await {
            let mut answer = vec![0; objects[number].bytes as usize];
            from.read_exact(&mut answer).await?;
            arrivals.send(number)?;
        }
        Ok(())
    };
    tokio::select! {
        ended = writer => ended,
        ended = reader => ended,
    }
}
