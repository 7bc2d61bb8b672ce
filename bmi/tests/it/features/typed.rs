//! Requests and replies as values.

use std::collections::BTreeMap;
use std::time::Duration;

use bmi::{Call, Client, Error, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::bed::{Bed, everywhere};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Question {
    key: String,
    versions: BTreeMap<u32, Option<u64>>,
}

async fn answer(call: Call) -> Result<(), Error> {
    let question: Question = call.decode()?;
    let data = call.data().await?;
    call.answer(&(question, 7_u8))?.data(data).await
}

#[test]
fn values_go_and_come_back_with_data() {
    everywhere(async |bed: &Bed| {
        let (server, addr) = bed.serve(answer).await;
        let client = Client::new(addr);
        let question = Question { key: "k".repeat(300), versions: [(1, None), (70_000, Some(u64::MAX))].into() };
        let reply = client.ask(&question).expect("it is encoded").data(vec![9; 20_000]).await.expect("a reply");
        assert_eq!(reply.decode::<(Question, u8)>().expect("an answer"), (question, 7));
        assert_eq!(reply.data, vec![9; 20_000]);
        // What is no value of the type is told on either side.
        let error = client.ask("no question").expect("it is encoded").await.expect_err("another type");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.detail().contains("Question"), "{error}");
        assert_eq!(reply.decode::<u8>().expect_err("bytes are left").kind(), ErrorKind::Protocol);
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}
