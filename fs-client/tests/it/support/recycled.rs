//! A client that gets buffers of an I/O server, and a file that is read through them, hold nothing
//! of what another client wrote. The bodies run over the simulator and over TCP.

use std::cell::Cell;
use std::time::Duration;

use bmi::bulk::{BulkDescriptor, Grant, RemoteSlice};
use bmi::paths::Path;
use bmi::{Addr, Body, Endpoint, MemList, Memory, Peer};
use fs_client::{Client, FsPath};
use fs_proto::{
    DatafileHandle, FsError, Hello, IodRequest, Region, Regions, Reply, Request, RequestBody, RequestId, Role, codec,
};

use super::bodies::striped;

/// The byte that must not arrive in any other file.
const POISON: u8 = 0xa5;
const PATIENCE: Duration = Duration::from_secs(20);
/// Lengths of transfers: in the smallest buffers of a server, in larger ones, and in several.
const LENS: [usize; 4] = [5000, 60_000, 100_000, 700_000];

/// A connection to an I/O server, used without the client library.
struct Raw {
    peer: Peer,
    id: u128,
    seq: Cell<u64>,
}

impl Raw {
    async fn connect(endpoint: &Endpoint, iod: &Addr, id: u128) -> Raw {
        let peer = endpoint.connect(iod, endpoint.within(PATIENCE)).await.unwrap();
        let raw = Raw { peer, id, seq: Cell::new(0) };
        raw.call(RequestBody::Hello(Hello::to(Role::Iod(0))), Body::None, None).await.result.unwrap();
        raw
    }

    /// Returns the bytes of a request.
    fn request(&self, body: RequestBody) -> Vec<u8> {
        let seq = self.seq.replace(self.seq.get() + 1);
        let id = RequestId { client: self.id, seq };
        codec::encode_request(&Request { id, unanswered: seq, timeout_ms: 10_000, caller: None, ticket: None, body })
    }

    async fn call(&self, body: RequestBody, data: Body, path: Option<Path>) -> Reply {
        let request = self.request(body);
        let call = self.peer.call(&request, data, self.peer.within(PATIENCE).path(path)).unwrap();
        codec::decode_reply(&call.reply().await.unwrap().bytes).unwrap()
    }

    /// Fills the server's buffers with poison.
    async fn poison(&self, datafile: DatafileHandle) {
        for path in [Path::ClientBased, Path::ServerBased] {
            for len in LENS {
                let data = Body::Out(MemList::from(vec![POISON; len]));
                self.call(write(datafile, len), data, Some(path)).await.result.unwrap();
            }
        }
    }

    /// Announces a client-based write of `len` bytes. Writes one byte into each buffer that the
    /// server grants, and says that this was all.
    async fn lie(&self, datafile: DatafileHandle, len: usize) -> Result<(), FsError> {
        let request = self.request(write(datafile, len));
        let mut message = vec![b'C', 3, 1, 0];
        message.extend((request.len() as u32).to_le_bytes());
        message.extend([0; 8]);
        message.extend((len as u64).to_le_bytes());
        message.extend(&request);
        let soon = self.peer.within(PATIENCE);
        let buffer = Memory::zeroed(8 << 10).unwrap();
        let (tag, _) =
            self.peer.endpoint().with(|engine| engine.forge_request(self.peer.id(), message.into(), soon)).unwrap();
        let mut received = self.peer.recv(tag, &buffer, soon);
        loop {
            let answer = received.await.unwrap();
            let answer = buffer.slice(0, answer.len as usize).to_vec();
            if answer[0] == 0 {
                return codec::decode_reply(&answer[16..]).unwrap().result.map(drop);
            }
            assert_eq!(answer[0], 1, "a grant");
            received = self.peer.recv(tag, &buffer, soon);
            let token = u32::from_le_bytes(answer[16..20].try_into().unwrap());
            let granted = BulkDescriptor::decode(&answer[20..], 100).unwrap();
            let start = RemoteSlice { len: 1, ..granted.pieces()[0] };
            let lie = Grant { descriptor: BulkDescriptor::try_from(vec![start]).unwrap(), token };
            self.peer.push_granted(&lie, vec![1], soon).await.unwrap();
        }
    }
}

fn write(datafile: DatafileHandle, len: usize) -> RequestBody {
    let regions = Regions::try_from(vec![Region::new(0, len as u64)]).unwrap();
    IodRequest::Write { datafile, regions, sync: false }.into()
}

/// Returns the number of poisoned bytes.
fn poison_in(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == POISON).count()
}

async fn datafile(client: &Client, path: &FsPath) -> DatafileHandle {
    client.create(path, striped(1 << 20, 1)).await.unwrap();
    client.lookup(path).await.unwrap().layout.unwrap().datafiles()[0].1
}

/// A client that is granted buffers, writes one byte into each and reports the end does not find
/// another client's data in its file. There must be one I/O server, at `iod`.
pub(crate) async fn a_lying_client_stores_nothing_of_others(client: &Client, iod: &Addr) {
    let endpoint = client.endpoint();
    let (honest, liar) = (Raw::connect(endpoint, iod, 100).await, Raw::connect(endpoint, iod, 101).await);
    let secret = datafile(client, &"/secret".parse().unwrap()).await;
    for len in LENS {
        honest.poison(secret).await;
        let path: FsPath = format!("/lie{len}").parse().unwrap();
        let stored = liar.lie(datafile(client, &path).await, len).await;
        let into = Memory::zeroed(len).unwrap();
        let read = client.open(&path).await.unwrap().read_at(0, &into).await.unwrap();
        assert_eq!(poison_in(&into.to_vec()), 0, "a lie of {len} bytes stored another client's data");
        assert!(stored.is_err() || read == len as u64, "{len} bytes were acknowledged and {read} are there");
    }
}

/// What was never written is read as zeros by every path, whatever the server's buffers held.
pub(crate) async fn short_reads_bring_nothing_of_others(client: &Client, iod: &Addr) {
    let endpoint = client.endpoint();
    let (honest, reader) = (Raw::connect(endpoint, iod, 100).await, Raw::connect(endpoint, iod, 101).await);
    let secret = datafile(client, &"/secret".parse().unwrap()).await;
    let short = datafile(client, &"/short".parse().unwrap()).await;
    reader.call(write(short, 10), Body::Out(vec![1; 10].into()), None).await.result.unwrap();
    for path in Path::TAKEN {
        for len in LENS {
            honest.poison(secret).await;
            let into = Memory::zeroed(len).unwrap();
            let regions = Regions::try_from(vec![Region::new(5, len as u64)]).unwrap();
            let read = IodRequest::Read { datafile: short, regions };
            reader.call(read.into(), Body::In(MemList::from(&into)), Some(path)).await.result.unwrap();
            let found = into.to_vec();
            assert_eq!((&found[..5], poison_in(&found)), (&[1; 5][..], 0), "{len} bytes, {path}");
            assert!(found[5..].iter().all(|byte| *byte == 0), "{len} bytes, {path}");
        }
    }
}
