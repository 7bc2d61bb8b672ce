//! Runs a test in each place: over TCP and over shared memory on tokio's default runtime, and in a
//! world.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bmi::{Call, Client, Error, Server};
use bmi_sim::World;

/// The bound of every wait.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Where a test runs, and what it needs to know of the place.
pub(crate) struct Bed {
    place: Place,
    next: AtomicU64,
}

enum Place {
    Tcp,
    Shm(tempfile::TempDir),
    World,
}

impl Bed {
    /// Returns an address to listen at, another one at each call.
    pub(crate) fn addr(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        match &self.place {
            Place::Tcp => "tcp://127.0.0.1:0".to_owned(),
            Place::Shm(folder) => format!("shm://{}/sockets/{number}", folder.path().display()),
            Place::World => format!("tcp://127.0.0.1:{}", number + 1),
        }
    }

    pub(crate) fn is_world(&self) -> bool {
        matches!(self.place, Place::World)
    }

    /// Starts a server, and returns it with its address.
    pub(crate) async fn serve<H, F>(&self, handler: H) -> (Server, String)
    where
        H: Fn(Call) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        start(Server::bind(self.addr()).await.expect("a server"), handler)
    }

    /// Starts a server with an echo for a handler, and returns a client of it besides.
    pub(crate) async fn echo(&self) -> (Server, Client) {
        let (server, addr) = self.serve(echo).await;
        (server, Client::new(addr))
    }
}

pub(crate) fn start<H, F>(server: Server, handler: H) -> (Server, String)
where
    H: Fn(Call) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let (addr, serving) = (server.addrs()[0].to_string(), server.clone());
    bmi::spawn(async move { serving.serve(handler).await.expect("it serves until its end") });
    (server, addr)
}

/// Replies with the request and the data.
pub(crate) async fn echo(call: Call) -> Result<(), Error> {
    let (request, data) = (call.request_bytes(), call.data().await?);
    call.reply(request).data(data).await
}

/// Runs a test in each place.
pub(crate) fn everywhere(test: impl AsyncFn(&Bed)) {
    outside(&test);
    in_a_world(&test);
}

/// Runs a test over TCP and over shared memory.
pub(crate) fn outside(test: impl AsyncFn(&Bed)) {
    for place in [Place::Tcp, Place::Shm(tempfile::tempdir().expect("a folder"))] {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        let bed = Bed { place, next: AtomicU64::new(0) };
        runtime.block_on(async { bmi::timeout(3 * LIMIT, test(&bed)).await.expect("it ends") });
    }
}

/// Runs a test on a node of a world. At the end, no endpoint holds anything.
pub(crate) fn in_a_world(test: impl AsyncFn(&Bed)) {
    let world = World::new(1);
    let bed = Bed { place: Place::World, next: AtomicU64::new(0) };
    world.block_on(world.node("n0").run(test(&bed)));
    world.run_for(Duration::from_secs(15));
    assert_eq!(world.leaks(), Vec::<String>::new());
}
