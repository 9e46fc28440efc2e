"""`loong devices` lists what there is, and what is broken with its error."""


def test_built_in_devices_are_listed_with_state_and_origin(loong, declare):
    declare("loong.devices")
    answer = loong("devices")
    assert answer.status == 0
    assert "cpu available built in" in answer.flat
    assert "cuda" in answer.flat
    assert "xpu" not in answer.flat


def test_it_says_which_one_a_run_gets(loong, declare, monkeypatch):
    declare("loong.devices")
    monkeypatch.setenv("LOONG_DEVICE", "cpu")
    assert "a run gets: cpu, chosen by LOONG_DEVICE" in loong("devices").out


def test_a_plug_in_that_does_not_load_is_named_with_its_error(loong, declare):
    declare("loong.devices", quantum="no_such_package.device:Quantum")
    answer = loong("devices")
    assert answer.status == 0
    assert "quantum failed" in answer.flat
    assert "ModuleNotFoundError: No module named 'no_such_package'" in answer.flat


def test_a_device_chosen_in_vain_is_the_users_error_below_the_list(loong, declare, monkeypatch):
    declare("loong.devices")
    monkeypatch.setenv("LOONG_DEVICE", "qantum")
    answer = loong("devices")
    assert answer.status == 2
    assert "cpu available" in answer.flat
    assert "no device is called 'qantum' (chosen by LOONG_DEVICE)" in answer.err
