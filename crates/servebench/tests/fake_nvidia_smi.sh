#!/bin/sh
# Stands in for nvidia-smi in tests: prints samples of GPU 0 or 1, then runs until it is ended, as
# the real one does with -lms. GPU 1 leaves fields out; there is no other GPU.
index=none
while [ $# -gt 0 ]; do
    if [ "$1" = -i ]; then index=$2; fi
    shift
done
case $index in
0)
    echo "Fake RTX, 30, 10, 1000, 6144, 50.00, 60, 1000"
    echo "Fake RTX, 60, 20, 2000, 6144, 100.00, 61, 1100"
    echo "Fake RTX, 90, 30, 3000, 6144, 150.00, 62, 1200"
    ;;
1)
    echo "Fake GB10, 10, [N/A], [N/A], [N/A], [Not Supported], 50, 1000"
    echo "Unable to determine the device handle"
    echo "Fake GB10, 30, [N/A], [N/A], [N/A], [Not Supported], [N/A], 1000"
    ;;
*)
    echo "No devices were found"
    exit 6
    ;;
esac
exec sleep 600
