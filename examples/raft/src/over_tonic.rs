//! The same network over tonic, without `protoc`: one unary method, whose codec carries bytes.
//!
//! A message is what it asks for, encoded by postcard, and then the data.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use futures_util::future::{Either, select};
use http::uri::PathAndQuery;
use openraft::error::{Fatal, NetworkError, RPCError, RaftError, ReplicationClosed, StreamingError};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{BasicNode, OptionalSend, Snapshot, Vote};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::Types;
use crate::network::Question;
use crate::node::{Answer, Node};

/// The longest message, in bytes.
const MOST_DATA: usize = 1 << 30;
/// What HTTP/2 lets a sender have under way, in bytes. By default a long message waits for 64 KiB
/// at a time to be acknowledged.
const WINDOW: u32 = 16 << 20;
/// The pause after a call that failed.
const PAUSE: Duration = Duration::from_millis(20);
/// The path of the one method.
const PATH: &str = "/raft.Store/Ask";

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Message = (Vec<u8>, Bytes);

#[derive(Clone, Copy, Default)]
struct Frames;

impl Codec for Frames {
    type Encode = Message;
    type Decode = Bytes;
    type Encoder = Frames;
    type Decoder = Frames;

    fn encoder(&mut self) -> Frames {
        Frames
    }

    fn decoder(&mut self) -> Frames {
        Frames
    }
}

impl Encoder for Frames {
    type Item = Message;
    type Error = Status;

    fn encode(&mut self, (head, data): Message, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(&head[..]);
        to.put(data);
        Ok(())
    }
}

impl Decoder for Frames {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// The calls of a node to others: a channel for each.
#[derive(Default)]
pub struct Network(BTreeMap<String, Peer>);

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, _: u64, node: &BasicNode) -> Peer {
        self.0.entry(node.addr.clone()).or_insert_with(|| Peer::new(&node.addr)).clone()
    }
}

/// Another node.
#[derive(Clone)]
pub struct Peer(Result<Channel, String>);

impl Peer {
    /// Connects to a node when that is needed.
    pub fn new(addr: &str) -> Peer {
        let endpoint = Endpoint::from_shared(format!("http://{addr}")).map(|endpoint| {
            let endpoint = endpoint.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
            endpoint.connect_lazy()
        });
        Peer(endpoint.map_err(|error| error.to_string()))
    }

    /// Sets a value at this node, if it is the leader.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn put(&self, key: u64, value: Bytes, time: Duration) -> Result<Answer, NetworkError> {
        self.ask(&Question::Put { key }, value, time).await
    }

    async fn ask<A>(&self, question: &Question, data: Bytes, time: Duration) -> Result<A, NetworkError>
    where
        A: DeserializeOwned,
    {
        let asked = async {
            let channel = self.0.clone().map_err(Status::invalid_argument)?;
            let mut client = tonic::client::Grpc::new(channel)
                .max_encoding_message_size(MOST_DATA)
                .max_decoding_message_size(MOST_DATA);
            client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let mut request = Request::new((encode(question)?, data));
            request.set_timeout(time);
            let reply = client.unary(request, PathAndQuery::from_static(PATH), Frames).await?;
            decode(reply.get_ref()).map(|(answer, _)| answer)
        };
        match asked.await {
            Ok(answer) => Ok(answer),
            Err(status) => {
                bmi::sleep(PAUSE).await;
                Err(NetworkError::new(&status))
            }
        }
    }
}

impl RaftNetwork<Types> for Peer {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        let data = encode(&rpc).map_err(|error| NetworkError::new(&error))?;
        Ok(self.ask(&Question::Append, data.into(), option.hard_ttl()).await?)
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<u64>,
        option: RPCOption,
    ) -> Result<VoteResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        Ok(self.ask(&Question::Vote(rpc), Bytes::new(), option.hard_ttl()).await?)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote<u64>,
        snapshot: Snapshot<Types>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<Types, Fatal<u64>>> {
        let question = Question::Snapshot(vote, snapshot.meta);
        match select(pin!(self.ask(&question, *snapshot.snapshot, option.hard_ttl())), pin!(cancel)).await {
            Either::Left((answer, _)) => Ok(answer?),
            Either::Right((closed, _)) => Err(StreamingError::Closed(closed)),
        }
    }
}

/// Answers nodes and clients.
///
/// # Errors
/// Those of tonic's server.
pub async fn serve(addr: SocketAddr, node: Node) -> Result<(), tonic::transport::Error> {
    let server = tonic::transport::Server::builder();
    let mut server = server.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
    server.add_service(Service(node)).serve(addr).await
}

#[derive(Clone)]
struct Service(Node);

impl NamedService for Service {
    const NAME: &'static str = "raft.Store";
}

impl tower_service::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Boxed<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let node = self.0.clone();
        Box::pin(async move {
            let grpc = tonic::server::Grpc::new(Frames);
            let mut grpc = grpc.max_encoding_message_size(MOST_DATA).max_decoding_message_size(MOST_DATA);
            match request.uri().path() {
                PATH => Ok(grpc.unary(Answering(node), request).await),
                _ => Ok(Status::unimplemented("no such method").into_http()),
            }
        })
    }
}

struct Answering(Node);

impl UnaryService<Bytes> for Answering {
    type Response = Message;
    type Future = Boxed<Result<Response<Message>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let node = self.0.clone();
        Box::pin(async move { Ok(Response::new(answer(request.into_inner(), node).await?)) })
    }
}

async fn answer(message: Bytes, node: Node) -> Result<Message, Status> {
    let (question, data) = decode::<Question>(&message)?;
    let failed = |error: bmi::Error| Status::internal(error.to_string());
    let head = match question {
        Question::Append => encode(&node.append(decode(&data)?.0).await.map_err(failed)?),
        Question::Vote(rpc) => encode(&node.vote(rpc).await.map_err(failed)?),
        Question::Snapshot(vote, meta) => encode(&node.install(vote, meta, data).await.map_err(failed)?),
        Question::Put { key } => encode(&node.put(key, data).await.map_err(failed)?),
        Question::Get { key } => {
            let (answer, value) = node.get(key).await.map_err(failed)?;
            return Ok((encode(&answer)?, value));
        }
    };
    Ok((head?, Bytes::new()))
}

fn encode<V: Serialize>(value: &V) -> Result<Vec<u8>, Status> {
    postcard::to_stdvec(value).map_err(|error| Status::internal(error.to_string()))
}

/// Returns a value, and the data behind it.
fn decode<V: DeserializeOwned>(message: &Bytes) -> Result<(V, Bytes), Status> {
    let (value, rest) =
        postcard::take_from_bytes(message).map_err(|error| Status::invalid_argument(error.to_string()))?;
    Ok((value, message.slice_ref(rest)))
}
