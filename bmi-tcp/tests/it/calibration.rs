//! Calibration over loopback finishes and yields numbers that make a policy. The values depend on
//! the machine; `--nocapture` shows them.

use std::time::Duration;

use bmi_core::comm::{self, Calibrations, Direction, Path};
use bmi_core::driver::{MonotonicClock, busy};
use bmi_core::{Clock, Config, Endpoint, Engine, Options, PeerEvent};
use bmi_tcp::{TcpConfig, TcpTransport};

fn endpoint() -> Endpoint {
    let clock = MonotonicClock::new();
    let transport = TcpTransport::new(TcpConfig::default()).unwrap();
    Endpoint::new(Engine::new(Box::new(transport), Config::default(), clock.now()).unwrap(), clock)
}

#[test]
fn loopback_is_measured_and_used() {
    let (client, server) = (endpoint(), endpoint());
    let addr = server.listen(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap();
    let both = [client.clone(), server.clone()];
    busy::block_on(&both, async {
        let peer = client.connect(&addr, Options::default()).await.unwrap();
        let PeerEvent::Connected { .. } = server.next_event().await else { panic!("no peer") };
        while peer.limits().unwrap().fast == 0 {
            client.sleep(Duration::from_millis(1)).await;
        }
        let before = (client.resource_usage(), server.resource_usage());
        let (options, mut known) = (client.within(Duration::from_secs(60)), Calibrations::default());
        let start = client.now();
        let measured = comm::calibrate(&peer, &mut known, options).await.unwrap();
        println!("{measured}in {:?}", client.now() - start);
        assert!(measured.empty_ns > 0 && measured.register_region_ns == 0);
        for direction in Direction::ALL {
            // Registering is free, so it makes no difference to one-sided transfers.
            let cost = |registered| measured.cost(direction, registered, Path::ServerBased, 1 << 20);
            assert_eq!(cost(false), cost(true));
        }
        let policy = client.with(|engine| *engine.policy());
        assert!(policy.measured && policy.thresholds == measured.thresholds());
        // The adapter is known now, so nothing is measured again.
        let again = comm::calibrate(&peer, &mut known, options).await.unwrap();
        assert_eq!(again, measured);
        assert_eq!((client.resource_usage(), server.resource_usage()), before);
    });
}
