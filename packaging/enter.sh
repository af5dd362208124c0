# Makes the root of the test and runs inside.sh in it. In a mount namespace of its own, with which every mount goes.
#
#   sh enter.sh SCRATCH fresh|overlay
set -eu

scratch=$1
if [ "$2" = overlay ]; then
  # An overlay may not lie on another one, as a container's root is.
  mkdir -p "$scratch/layers"
  mount -t tmpfs -o size=1g tmpfs "$scratch/layers"
  mkdir "$scratch/layers/upper" "$scratch/layers/work"
  mount -t overlay -o "lowerdir=/,upperdir=$scratch/layers/upper,workdir=$scratch/layers/work" overlay "$scratch/root"
fi
mount -t proc proc "$scratch/root/proc"
mount --bind /dev "$scratch/root/dev"
mkdir -p "$scratch/root/test"
cp "$scratch"/*.deb "$scratch/inside.sh" "$scratch/root/test"
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
  chroot "$scratch/root" /bin/sh /test/inside.sh
