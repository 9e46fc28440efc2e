"""Run every check; print what each found and exit with 1 if any found something."""

import sys

from tools.checks import architecture, faults, files, versions

CHECKS = (
    architecture.imports_follow_the_arrows,
    architecture.raw_cuda_stays_in_the_device_folder,
    architecture.megatron_has_one_door,
    files.names_say_something,
    files.files_keep_to_one_subject,
    files.no_address_of_a_registry,
    faults.every_situation_has_its_test,
    versions.every_package_is_complete,
    versions.changelog_tells_the_version,
    versions.ranges_admit_the_siblings,
)


def main() -> int:
    """Run the checks and report."""
    failed = 0
    for check in CHECKS:
        findings = list(check())
        failed += bool(findings)
        print(f"{'fail' if findings else 'ok  '} {check.__module__.split('.')[-1]}.{check.__name__}")
        for finding in findings:
            print(f"     {finding}")
    return 1 if failed else 0


sys.exit(main())
