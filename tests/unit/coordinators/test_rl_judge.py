def test_no_quorum_names_each_rollout_its_address_and_its_last_error() -> None:
    """Scenario 54: whoever waits for a rollout that never serves is told which one, where it was asked, and what it said."""
    world = running(quorum_ms=5_000, sync_ms=60_000)
    world.kill(1)
    world.publish(1)
    for _ in range(20):
        while world.calls:
            _, call = world.calls[0]
            world.perform(0, "refused" if call.verb is Verb.LOAD else "ok")
        if world.failures():
            break
        world.wait(500)
    message = world.failures()[0].message
    assert "rollout[0]" in message
    assert "http://127.0.0.1:7000 (refused)" in message
    assert "rollout[1] DEAD" in message
